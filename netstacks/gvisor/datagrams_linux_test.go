package main

import (
	"encoding/binary"
	"net"
	"testing"
	"time"
)

// datagram returns the datagram with these numbers, with the right payload.
func (f *flow) datagram(trial uint32, number uint64) []byte {
	bytes := append([]byte(nil), f.payload...)
	binary.BigEndian.PutUint32(bytes, trial)
	binary.BigEndian.PutUint64(bytes[4:], number)
	return bytes
}

// The same cases as in src/run/datagrams.rs, for the counters of the run.
func TestLostReorderedAndRepeatedDatagramsAreToldApart(t *testing.T) {
	f := newFlow(&datagrams{Direction: "to_server", Bytes: 20, Verify: "full"})
	for index, one := range []struct {
		numbers                        []uint64
		arrived, reordered, duplicated uint64
	}{
		{[]uint64{0, 1, 2, 3}, 4, 0, 0},
		{[]uint64{0, 1, 5}, 3, 0, 0},
		{[]uint64{0, 2, 1, 3}, 4, 1, 0},
		{[]uint64{0, 1, 1, 2, 0}, 3, 0, 2},
		{[]uint64{3, 3, 1, 1}, 2, 1, 2},
		{[]uint64{0, remembered + 5, 6, remembered + 5, 6}, 3, 1, 2},
		{[]uint64{0, 3 * remembered, 3*remembered - 1, 1}, 4, 2, 0},
	} {
		trial := uint32(index + 1)
		for _, number := range one.numbers {
			f.take(f.datagram(trial, number))
		}
		// A datagram of an earlier trial, a short one, and one with another payload.
		wrong := f.datagram(trial, 99)
		wrong[19]++
		for _, other := range [][]byte{f.datagram(trial-1, 7), f.datagram(trial, 8)[:19], wrong} {
			f.take(other)
		}
		expected := counts{Trial: trial, Arrived: one.arrived, Reordered: one.reordered, Duplicated: one.duplicated}
		if counted := *f.report(); counted != expected {
			t.Errorf("%v: %+v", one.numbers, counted)
		}
	}
}

func TestDatagramsAreSentAtTheirRateWhenATrialBegins(t *testing.T) {
	f := newFlow(&datagrams{Direction: "to_client", Bytes: 100})
	client, server := net.Pipe()
	go f.serve(server)
	client.Write([]byte("hello"))
	if f.begin(`"other"`) || !f.begin(`{"trial":{"number":3,"seconds":0.1,"rate":200}}`) {
		t.Fatal("an order is taken for another")
	}
	buffer := make([]byte, 200)
	for number := range uint64(20) {
		client.SetDeadline(time.Now().Add(10 * time.Second))
		n, err := client.Read(buffer)
		if err != nil || string(buffer[:n]) != string(f.datagram(3, number)) {
			t.Fatal(number, n, err)
		}
	}
	for range 1000 {
		if r := f.report(); r.Sent != nil {
			if *r.Sent != 20 || !r.Greeted {
				t.Errorf("%+v, %d sent", r, *r.Sent)
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the trial does not end")
}
