package main

import (
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
)

// period is the length after which payload repeats.
const period = 65521

// server serves the load of a task.
type server struct {
	task           *task
	streams        map[uint16]*stream
	response       []byte
	received, sent atomic.Uint64
	// If not nil, it gets all connections.
	application *application
	// nil without bulk datagrams.
	flow *flow
}

// report has the bytes of payload that were received and sent so far. Bulk datagrams are counted separately.
type report struct {
	ReceivedBytes uint64  `json:"received_bytes"`
	SentBytes     uint64  `json:"sent_bytes"`
	Datagrams     *counts `json:"datagrams,omitempty"`
}

func newServer(t *task) *server {
	s := &server{task: t, streams: make(map[uint16]*stream)}
	for index := range t.Streams {
		s.streams[t.Streams[index].Port] = &t.Streams[index]
	}
	if t.Requests != nil {
		s.response = payload(t.Requests.Seed, t.Requests.ResponseBytes)
	}
	if t.Datagrams != nil {
		s.flow = newFlow(t.Datagrams)
	}
	return s
}

func (s *server) report() report {
	r := report{ReceivedBytes: s.received.Load(), SentBytes: s.sent.Load()}
	if s.flow != nil {
		r.Datagrams = s.flow.report()
	}
	return r
}

// payload returns the first bytes of the payload of a seed: a period of SplitMix64 output in little-endian order, which
// repeats.
func payload(seed uint64, length int) []byte {
	bytes := make([]byte, 0, max(length, period)+8)
	for len(bytes) < period {
		seed += 0x9E3779B97F4A7C15
		mixed := seed
		mixed = (mixed ^ mixed>>30) * 0xBF58476D1CE4E5B9
		mixed = (mixed ^ mixed>>27) * 0x94D049BB133111EB
		bytes = binary.LittleEndian.AppendUint64(bytes, mixed^mixed>>31)
	}
	bytes = bytes[:period]
	for len(bytes) < length {
		bytes = append(bytes, bytes[:min(period, length-len(bytes))]...)
	}
	return bytes[:length]
}

// connection is a TCP connection of the stack.
type connection interface {
	net.Conn
	CloseWrite() error
}

// serve serves a connection until its end. An error closes it, and the client notices that.
func (s *server) serve(c connection, port uint16) {
	defer c.Close()
	switch stream := s.streams[port]; {
	case stream == nil && s.task.Requests != nil:
		s.answer(c, s.task.Requests)
	case stream == nil:
	case stream.Direction == "to_client":
		s.send(c, stream)
	default:
		s.receive(c, stream)
	}
}

// send sends the warm-up and then the payload, each after a byte of the client. The payload has a fixed length, or ends
// when the client closes.
func (s *server) send(c connection, stream *stream) {
	bytes := payload(stream.Seed, period+stream.BufferBytes)
	offset := uint64(0)
	write := func(most uint64) bool {
		start := offset % period
		n, err := c.Write(bytes[start : start+min(most, uint64(stream.BufferBytes))])
		offset += uint64(n)
		s.sent.Add(uint64(n))
		return err == nil
	}
	deliver := func(end uint64) bool {
		for offset < end {
			if !write(end - offset) {
				return false
			}
		}
		return true
	}
	if stream.WarmupBytes > 0 && !(awaitGo(c) && deliver(stream.WarmupBytes)) || !awaitGo(c) {
		return
	}
	if stream.Bytes != nil {
		deliver(stream.WarmupBytes + *stream.Bytes)
	} else {
		var closed atomic.Bool
		go func() {
			c.Read(make([]byte, 1))
			closed.Store(true)
		}()
		for !closed.Load() && write(^uint64(0)) {
		}
	}
	c.CloseWrite()
	c.Read(make([]byte, 1))
}

func awaitGo(c connection) bool {
	n, _ := c.Read(make([]byte, 1))
	return n == 1
}

// receive reads the warm-up and the payload, and confirms the total after each.
func (s *server) receive(c connection, stream *stream) {
	buffer := make([]byte, stream.BufferBytes)
	total := uint64(0)
	take := func(end uint64) bool {
		for total < end {
			n, err := c.Read(buffer[:min(end-total, uint64(len(buffer)))])
			total += uint64(n)
			s.received.Add(uint64(n))
			if err != nil {
				return err == io.EOF
			}
		}
		return true
	}
	confirm := func() bool {
		_, err := c.Write(binary.BigEndian.AppendUint64(nil, total))
		return err == nil
	}
	if stream.WarmupBytes > 0 && !(take(stream.WarmupBytes) && confirm()) {
		return
	}
	end := ^uint64(0)
	if stream.Bytes != nil {
		end = stream.WarmupBytes + *stream.Bytes
	}
	if take(end) && confirm() {
		c.CloseWrite()
		c.Read(make([]byte, 1))
	}
}

// answer responds to requests until the client closes, or to one if each request has its own connection.
func (s *server) answer(c connection, r *requests) {
	buffer := make([]byte, 64<<10)
	got := 0
	for {
		n, err := c.Read(buffer)
		s.received.Add(uint64(n))
		got += n
		for ; got >= r.RequestBytes; got -= r.RequestBytes {
			n, err := c.Write(s.response)
			s.sent.Add(uint64(n))
			if err != nil || r.Closes {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// serveDatagrams serves the bulk datagrams of one client, or responds to its requests. A response begins with the mark
// of its request.
func (s *server) serveDatagrams(c net.Conn) {
	defer c.Close()
	if s.flow != nil {
		s.flow.serve(c)
		return
	}
	r := s.task.Requests
	if r == nil {
		return
	}
	buffer, response := make([]byte, 64<<10), append([]byte(nil), s.response...)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		s.received.Add(uint64(n))
		if n != r.RequestBytes {
			continue
		}
		copy(response[:r.MarkBytes], buffer)
		if n, err := c.Write(response); err == nil {
			s.sent.Add(uint64(n))
		}
	}
}
