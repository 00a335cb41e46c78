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

// hops are the handoffs from the reader of one device to the writer of the other.
var hops = map[string]func(*direction) error{
	"direct":  (*direction).direct,
	"channel": (*direction).channel,
	"pool":    (*direction).pool,
}

// depth is the number of batches that may wait between the reader and the writer. With offload, each one is a
// super-packet in 130 KB, plus garbage: with a depth of 32, the process may grow beyond 32 MB. Depths up to 256 are
// not measurably faster.
const depth = 16

// direction carries packets from one device to the other.
type direction struct {
	from, to tun.Device
	mtu      int
	read     tally
	written  tally
	lost     atomic.Uint64
}

// tally counts packets that the package has read or gets to write. With offload, these are the segments of
// super-packets. It has a separate cache line, because reader and writer may run on different processors.
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
	// Segments that do not fit the batch are lost. The package says that a reader should continue after this error.
	if err := b.read(d.from); err != nil && !errors.Is(err, tun.ErrTooManySegments) {
		return fmt.Errorf("read from the device %s: %w; see that nobody deletes it", name(d.from), err)
	}
	d.read.add(b.packets)
	return nil
}

// refusals are errors that lose one packet, as any network may: the kernel has no memory, the packet is invalid, or
// the device is down. The package itself continues with the other packets.
var refusals = []error{unix.ENOMEM, unix.ENOBUFS, unix.EINVAL, unix.EIO}

// send writes packets. They are counted first, because the package coalesces them in place.
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

// direct reads and writes in turns. Like the other hops, it ends only with an error.
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

// channel reads and writes at the same time. Each batch is in new memory, and the garbage collector frees it.
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

// pool reads and writes at the same time. The writer returns the batches to the reader.
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

// relay reads in one goroutine and writes in another one until one of them fails. The other one is not stopped,
// because the process ends.
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
