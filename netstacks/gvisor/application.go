package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// application executes the orders of the run, which plays the application on top of the stack
// (docs/external-stack.md, "Conformance").
type application struct {
	stack  dialer
	output *json.Encoder
	// Guards output and the fields below.
	lock        sync.Mutex
	refuses     bool
	last        uint64
	connections map[uint64]*controlled
	flows       map[ends]net.Conn
}

// controlled is a connection and its pending orders.
type controlled struct {
	abortable
	reads  chan int
	writes chan func() error
}

// ends are the two addresses of a flow of datagrams.
type ends struct{ local, peer string }

// order is a line from the run. One of the fields is set.
type order struct {
	Read *struct {
		Connection uint64
		Bytes      int
	}
	Write *struct {
		Connection uint64
		Data       []byte
	}
	Shutdown, Reset, Close *struct{ Connection uint64 }
	Datagram               *struct {
		Local, Peer string
		Data        []byte
	}
}

func newApplication(output *json.Encoder) *application {
	return &application{output: output, connections: make(map[uint64]*controlled), flows: make(map[ends]net.Conn)}
}

// values are the fields of an event.
type values map[string]any

// say writes a line for the run. It ignores a broken pipe, because then the input ends too.
func (a *application) say(event string, of values) {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.output.Encode(map[string]values{event: of})
}

// answer reports the result of an order.
func (a *application) answer(event string, err error, of values) {
	if err != nil {
		of["error"] = errorName(err)
	}
	a.say(event, of)
}

func errorName(err error) string {
	for part, name := range map[string]string{"reset": "reset", "timed out": "timed_out", "too long": "too_large"} {
		if strings.Contains(err.Error(), part) {
			return name
		}
	}
	return err.Error()
}

// accepts returns whether connections are accepted.
func (a *application) accepts() bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return !a.refuses
}

// serve executes the orders for a connection, until it is closed.
func (a *application) serve(c abortable) {
	conn := &controlled{c, make(chan int, 1), make(chan func() error, 1)}
	a.lock.Lock()
	if a.refuses {
		a.lock.Unlock()
		c.abort()
		return
	}
	a.last++
	id := a.last
	a.connections[id] = conn
	a.lock.Unlock()
	a.say("accepted", values{"connection": id, "local": c.LocalAddr().String(), "peer": c.RemoteAddr().String()})
	go func() {
		for write := range conn.writes {
			a.answer("written", write(), values{"connection": id})
		}
	}()
	for bytes := range conn.reads {
		data := make([]byte, bytes)
		n, err := c.Read(data)
		if err == io.EOF {
			n, err = 0, nil
		}
		a.answer("read", err, values{"connection": id, "data": data[:n]})
	}
}

// end removes a connection and returns it, or nil if there is none.
func (a *application) end(id uint64) *controlled {
	a.lock.Lock()
	defer a.lock.Unlock()
	c := a.connections[id]
	if c != nil {
		delete(a.connections, id)
		close(c.reads)
		close(c.writes)
	}
	return c
}

// obey executes a line. It does not block: a connection has at most one pending read and one pending write.
func (a *application) obey(line string) error {
	if line == `"refuse"` {
		a.lock.Lock()
		defer a.lock.Unlock()
		a.refuses = true
		return nil
	}
	var o order
	if err := json.Unmarshal([]byte(line), &o); err != nil {
		return coded{fmt.Errorf("read an order: %w", err), 2}
	}
	of := func(id uint64) *controlled {
		a.lock.Lock()
		defer a.lock.Unlock()
		return a.connections[id]
	}
	switch {
	case o.Read != nil:
		if c := of(o.Read.Connection); c != nil {
			c.reads <- o.Read.Bytes
		}
	case o.Write != nil:
		if c := of(o.Write.Connection); c != nil {
			c.writes <- func() error { _, err := c.Write(o.Write.Data); return err }
		}
	case o.Shutdown != nil:
		if c := of(o.Shutdown.Connection); c != nil {
			c.writes <- c.CloseWrite
		}
	case o.Reset != nil:
		if c := a.end(o.Reset.Connection); c != nil {
			c.abort()
		}
	case o.Close != nil:
		if c := a.end(o.Close.Connection); c != nil {
			c.Close()
		}
	case o.Datagram != nil:
		a.answer("sent", a.send(ends{o.Datagram.Local, o.Datagram.Peer}, o.Datagram.Data), values{})
	default:
		return coded{fmt.Errorf("do %s: it is no order", line), 2}
	}
	return nil
}

// send sends a datagram.
func (a *application) send(e ends, data []byte) error {
	a.lock.Lock()
	c := a.flows[e]
	a.lock.Unlock()
	if c == nil {
		var err error
		if c, err = a.stack.dialUDP(e); err != nil {
			return err
		}
		a.receive(c)
	}
	_, err := c.Write(data)
	return err
}

// receive reports the datagrams of a flow.
func (a *application) receive(c net.Conn) {
	e := ends{c.LocalAddr().String(), c.RemoteAddr().String()}
	a.lock.Lock()
	a.flows[e] = c
	a.lock.Unlock()
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, err := c.Read(buffer)
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				// An ICMP error about a datagram that was sent.
				continue
			}
			a.say("datagram", values{"local": e.local, "peer": e.peer, "data": buffer[:n]})
		}
	}()
}
