package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/tun"
)

// memoryTUN delivers batches of numbered packets to its reader, and then the error last. A write fails unless the
// packets have the next numbers in order.
type memoryTUN struct {
	tun.Device
	name    string
	batches int
	last    error
	next    uint32
	// The number of the next packet that has to be written.
	expected uint32
}

const (
	packetsEach = 7
	packetSize  = 1500
)

func (m *memoryTUN) Name() (string, error) { return m.name, nil }

func (m *memoryTUN) BatchSize() int { return packetsEach }

func (m *memoryTUN) Read(buffers [][]byte, sizes []int, offset int) (int, error) {
	if m.batches == 0 {
		return 0, m.last
	}
	m.batches--
	for i := range packetsEach {
		clear(buffers[i])
		binary.BigEndian.PutUint32(buffers[i][offset:], m.next)
		sizes[i] = packetSize
		m.next++
	}
	// The reader has to continue after this error.
	return packetsEach, tun.ErrTooManySegments
}

// Write coalesces the packets into the first one, as the package does. So the packets must not share memory.
func (m *memoryTUN) Write(packets [][]byte, offset int) (int, error) {
	if m.last != nil {
		return 0, m.last
	}
	room := cap(packets[0])
	for i, packet := range packets {
		if number := binary.BigEndian.Uint32(packet[offset:]); number != m.expected || len(packet) != offset+packetSize {
			return 0, fmt.Errorf("packet %d of %d bytes where %d was due", number, len(packet), m.expected)
		}
		m.expected++
		if i > 0 {
			packets[0] = append(packets[0], packet[offset:]...)
		}
	}
	if cap(packets[0]) != room {
		return 0, errors.New("the first packet has no room for the others")
	}
	return len(packets), nil
}

func newMemoryTUN(name string, batches int, last error) *memoryTUN {
	return &memoryTUN{name: name, batches: batches, last: last}
}

func TestEveryHopKeepsPacketsAndTheirOrder(t *testing.T) {
	for hop, carry := range hops {
		t.Run(hop, func(t *testing.T) {
			const batches = 1000
			from, to := newMemoryTUN("from", batches, os.ErrClosed), newMemoryTUN("to", 0, nil)
			d := direction{from: from, to: to, mtu: packetSize}
			err := carry(&d)
			if !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), "read from the device from") {
				t.Fatal(err)
			}
			got := d.carried()
			if got.ReadPackets != batches*packetsEach || got.ReadBytes != batches*packetsEach*packetSize {
				t.Fatalf("%+v", got)
			}
			// When the reader fails, the packets between reader and writer are lost.
			if hop == "direct" && (got.WrittenPackets != got.ReadPackets || got.WrittenBytes != got.ReadBytes) {
				t.Fatalf("%+v", got)
			}
			if got.WrittenPackets+(depth+1)*packetsEach < got.ReadPackets {
				t.Fatalf("%+v", got)
			}
		})
	}
}

func TestEveryHopEndsWithItsWriter(t *testing.T) {
	for hop, carry := range hops {
		t.Run(hop, func(t *testing.T) {
			d := direction{from: newMemoryTUN("from", -1, nil), to: newMemoryTUN("to", 0, os.ErrClosed), mtu: packetSize}
			err := carry(&d)
			if !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), "write to the device to") {
				t.Fatal(err)
			}
		})
	}
}

func TestABatchHasRoomForTheLongestPacketAndManyOfTheMTU(t *testing.T) {
	b := newBatch(128, 1500)
	if len(b.buffers) != 128 || len(b.buffers[0])-2*headroom != maxPacket {
		t.Fatal(len(b.buffers), len(b.buffers[0]))
	}
	for i, buffer := range b.buffers[1:] {
		if len(buffer) != 1500+headroom || cap(buffer) != len(buffer) {
			t.Fatal(i, len(buffer), cap(buffer))
		}
	}
}

func TestClonesAreEqualAndOfTheirOwn(t *testing.T) {
	packets := [][]byte{[]byte("first"), []byte("second"), []byte("third")}
	copies := clone(packets)
	for i := range packets {
		if !bytes.Equal(packets[i], copies[i]) {
			t.Fatalf("%q", copies)
		}
	}
	copies[0] = append(copies[0], bytes.Repeat([]byte("x"), 11)...)
	if packets[0] = []byte("other"); !bytes.Equal(copies[1], packets[1]) || !bytes.Equal(copies[2], packets[2]) {
		t.Fatalf("%q", copies)
	}
	if len(clone(nil)) != 0 {
		t.Fatal("of nothing")
	}
}

func TestTheProtocol(t *testing.T) {
	for _, test := range []struct {
		input, output, failure string
	}{
		{"", "{\"ready\":{}}\n", ""},
		{"\"stop\"\n", "{\"ready\":{}}\n", `do "stop": it is "start", once, or "report"`},
		{"\"start\"\n", "{\"ready\":{}}\n", "read from the device"},
		{
			"\"report\"\n",
			`{"ready":{}}
{"to_far":{"read_packets":0,"read_bytes":0,"written_packets":0,"written_bytes":0,"lost_packets":0,"reordered":null},` +
				`"to_near":{"read_packets":0,"read_bytes":0,"written_packets":0,"written_bytes":0,"lost_packets":0,"reordered":null}}
`,
			"",
		},
	} {
		near, far := newMemoryTUN("near", 0, os.ErrClosed), newMemoryTUN("far", 0, os.ErrClosed)
		f := newForwarder(near, far, options{hop: "direct", mtu: packetSize})
		// After a start the input stays open, so that the device ends the forwarder.
		reader, writer := io.Pipe()
		go func() {
			io.WriteString(writer, test.input)
			if !strings.HasPrefix(test.input, `"start"`) {
				writer.Close()
			}
		}()
		var output bytes.Buffer
		err := f.obey(reader, &output)
		if output.String() != test.output || (err != nil) != (test.failure != "") {
			t.Errorf("%q: %q, %v", test.input, output.String(), err)
		}
		if err != nil && !strings.Contains(err.Error(), test.failure) {
			t.Errorf("%q: %v", test.input, err)
		}
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	names := []string{"-near", "a", "-far", "b", "-far-namespace", "/nowhere"}
	for _, test := range []struct{ arguments, says string }{
		{"-offload whole", `-offload "whole": it is off or on`},
		{"-hop teleport", `-hop "teleport": it is direct, channel or pool`},
		{"-mtu 10", "-mtu 10: it is 68 to 65535"},
		{"-near=", "-near, -far and -far-namespace are all needed"},
		{"-colour blue", "flag provided but not defined: -colour"},
		{"more", `unexpected argument "more"`},
		{"-near much-too-long-a-name", `name a device "much-too-long-a-name": it takes 1 to 15 bytes`},
	} {
		arguments := append(append([]string(nil), names...), strings.Fields(test.arguments)...)
		err := run(arguments, strings.NewReader(""), io.Discard)
		if err == nil || err.Error() != test.says || exitCode(err) != 2 {
			t.Errorf("%s: %v, %d", test.arguments, err, exitCode(err))
		}
	}
}

func TestTheVersionsHaveNoHosts(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.24", Deps: []*debug.Module{
		{Path: "example.org/sys", Version: "v0.1.0"},
		{Path: "example.org/wireguard", Version: "v1", Replace: &debug.Module{Path: "../wireguard"}},
	}}
	if got, want := versions(info), "go1.24, sys v0.1.0, wireguard replaced"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}
