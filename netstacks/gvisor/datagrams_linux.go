package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// The number of the trial and the number of the datagram, in big-endian order.
	datagramHeader = 12
	// The last numbers that are remembered. An older number counts as reordered, even if it is a duplicate.
	remembered = 1 << 16
)

// datagrams are bulk datagrams in one direction.
type datagrams struct {
	Direction string `json:"direction"`
	Bytes     int    `json:"bytes"`
	Seed      uint64 `json:"seed"`
	Verify    string `json:"verify"`
}

// trial is a period in which datagrams are sent to the client: at a rate per second, or as many as the stack takes.
type trial struct {
	Number  uint32   `json:"number"`
	Seconds float64  `json:"seconds"`
	Rate    *float64 `json:"rate"`
}

// counts are the counters of the last trial.
type counts struct {
	Trial   uint32 `json:"trial"`
	Greeted bool   `json:"greeted"`
	// How many datagrams were sent; nil until all are sent.
	Sent       *uint64 `json:"sent"`
	Arrived    uint64  `json:"arrived"`
	Reordered  uint64  `json:"reordered"`
	Duplicated uint64  `json:"duplicated"`
}

// flow serves the datagrams of a task.
type flow struct {
	task    *datagrams
	payload []byte
	trials  chan trial
	lock    sync.Mutex
	counts  counts
	// The number after the highest one of the trial, and which of the last numbers have arrived.
	next uint64
	seen [remembered]bool
}

func newFlow(d *datagrams) *flow {
	return &flow{task: d, payload: payload(d.Seed, d.Bytes), trials: make(chan trial, 1)}
}

func (f *flow) report() *counts {
	f.lock.Lock()
	defer f.lock.Unlock()
	c := f.counts
	return &c
}

// begin starts a trial and returns true, if the order is one.
func (f *flow) begin(order string) bool {
	var o struct{ Trial *trial }
	if json.Unmarshal([]byte(order), &o) != nil || o.Trial == nil {
		return false
	}
	f.trials <- *o.Trial
	return true
}

// serve counts the client's datagrams, or sends to it after its first datagram.
func (f *flow) serve(c net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		if f.task.Direction == "to_client" {
			break
		}
		f.take(buffer[:n])
	}
	f.lock.Lock()
	f.counts.Greeted = true
	f.lock.Unlock()
	for t := range f.trials {
		f.send(c, t)
	}
}

// take counts a received datagram. A new trial begins with its first datagram.
func (f *flow) take(datagram []byte) {
	if len(datagram) != f.task.Bytes {
		return
	}
	trial, number := binary.BigEndian.Uint32(datagram), binary.BigEndian.Uint64(datagram[4:])
	// The first trial is the warm-up.
	isVerified := f.task.Verify == "full" || f.task.Verify == "sample" && trial == 1
	if isVerified && !bytes.Equal(datagram[datagramHeader:], f.payload[datagramHeader:]) {
		return
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	if trial > f.counts.Trial {
		f.counts, f.next = counts{Trial: trial}, 0
	} else if trial < f.counts.Trial {
		return
	}
	place := &f.seen[number%remembered]
	switch {
	case number >= f.next:
		// Clear the places of the numbers that have not arrived yet.
		for skipped := max(f.next, number-min(number, remembered)); skipped < number; skipped++ {
			f.seen[skipped%remembered] = false
		}
		f.next = number + 1
	case f.next-number <= remembered && *place:
		f.counts.Duplicated++
		return
	default:
		f.counts.Reordered++
	}
	*place = true
	f.counts.Arrived++
}

// send sends the datagrams of a trial at its rate.
func (f *flow) send(c net.Conn, t trial) {
	f.set(counts{Trial: t.Number})
	datagram := append([]byte(nil), f.payload...)
	binary.BigEndian.PutUint32(datagram, t.Number)
	begin, sent := time.Now(), uint64(0)
	for {
		now := time.Since(begin).Seconds()
		if now >= t.Seconds {
			break
		}
		if t.Rate != nil && sent > uint64(now**t.Rate) {
			nap(min(float64(sent) / *t.Rate, t.Seconds) - now)
			continue
		}
		binary.BigEndian.PutUint64(datagram[4:], sent)
		if _, err := c.Write(datagram); err != nil {
			// A queue is full.
			runtime.Gosched()
			continue
		}
		sent++
	}
	f.set(counts{Trial: t.Number, Sent: &sent})
}

func (f *flow) set(c counts) {
	f.lock.Lock()
	defer f.lock.Unlock()
	c.Greeted = true
	f.counts = c
}

// nap sleeps for a number of seconds. It is more exact than time.Sleep, which may sleep a millisecond longer.
func nap(seconds float64) {
	span := unix.NsecToTimespec(int64(max(seconds, 0) * 1e9))
	unix.Nanosleep(&span, nil)
}
