package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

// hops are the ways from the reader of a device to the writer of the other.
var hops = map[string]func(*direction) error{
	"direct":  (*direction).direct,
	"channel": (*direction).channel,
	"pool":    (*direction).pool,
}

// How many batches may be between the reader and the writer. With offload each is a super-packet in 130 KB, and
// garbage comes on top: with 32 of them the process may grow beyond 32 MB. Up to 256 are not faster by more than
// the noise.
const depth = 16

// direction is the way from one device to the other.
type direction struct {
	from, to tun.Device
	mtu      int
	read     tally
	written  tally
	lost     atomic.Uint64
}

// tally counts packets as the package hands them over, or gets them handed: with offload these are the pieces of
// super-packets. It has a cache line of its own, for reader and writer may be on different processors.
type tally struct {
	packets, bytes atomic.Uint64
	_              [48]byte
}

func (t *tally) add(packets [][]byte) {
	t.packets.Add(uint64(len(packets)))
	t.bytes.Add(uint64(length(packets) - len(packets)*headroom))
}

func (d *direction) newBatch() *batch {
	return newBatch(d.from.BatchSize(), d.mtu)
}

// receive fills the batch.
func (d *direction) receive(b *batch) error {
	// What did not fit any more is lost, which the package wants no reader to end for.
	if err := b.read(d.from); err != nil && !errors.Is(err, tun.ErrTooManySegments) {
		return fmt.Errorf("read from the device %s: %w; see that nobody deletes it", name(d.from), err)
	}
	d.read.add(b.packets)
	return nil
}

// refusals are errors of one packet, which is lost then as in any network: the kernel has no memory for it or no
// use, or the device is down. The package goes on with the others by itself.
var refusals = []error{unix.ENOMEM, unix.ENOBUFS, unix.EINVAL, unix.EIO}

// send writes packets. They are counted first, for the package joins them in place.
func (d *direction) send(packets [][]byte) error {
	d.written.add(packets)
	if _, err := d.to.Write(packets, headroom); err != nil {
		if slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) }) {
			d.lost.Add(1)
			return nil
		}
		return fmt.Errorf("write to the device %s: %w; see that nobody deletes it or takes it down", name(d.to), err)
	}
	return nil
}

func name(device tun.Device) string {
	name, err := device.Name()
	if err != nil {
		return "that is gone"
	}
	return name
}

// direct reads and writes by turns. Like the others, it ends by an error only.
func (d *direction) direct() error {
	b := d.newBatch()
	for {
		if err := d.receive(b); err != nil {
			return err
		}
		if err := d.send(b.packets); err != nil {
			return err
		}
	}
}

// channel reads and writes at the same time. Each batch is in memory of its own, which the garbage collector
// gets.
func (d *direction) channel() error {
	b := d.newBatch()
	return relay(
		func() ([][]byte, error) {
			err := d.receive(b)
			return clone(b.packets), err
		},
		d.send,
	)
}

// pool reads and writes at the same time, with batches that come back to the reader.
func (d *direction) pool() error {
	batches := sync.Pool{New: func() any { return d.newBatch() }}
	return relay(
		func() (*batch, error) {
			b := batches.Get().(*batch)
			return b, d.receive(b)
		},
		func(b *batch) error {
			defer batches.Put(b)
			return d.send(b.packets)
		},
	)
}

// relay has one goroutine read and another one write, until one of them fails. The other one is left behind: the
// process ends then.
func relay[T any](read func() (T, error), write func(T) error) error {
	items := make(chan T, depth)
	failed := make(chan error, 2)
	go func() {
		for {
			item, err := read()
			if err != nil {
				failed <- err
				return
			}
			items <- item
		}
	}()
	go func() {
		for item := range items {
			if err := write(item); err != nil {
				failed <- err
				return
			}
		}
	}()
	return <-failed
}
