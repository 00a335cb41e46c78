package main

import "golang.zx2c4.com/wireguard/tun"

const (
	// What the package wants free in front of a packet, for a virtio_net_hdr.
	headroom = 10
	// The longest packet there is, a super-packet included.
	maxPacket = 65535
)

// batch is memory for what one Read gives: one packet, or one super-packet that the package has split.
type batch struct {
	buffers [][]byte
	sizes   []int
	packets [][]byte
}

// newBatch has room for count packets of the size of the MTU, and for any one in the place of the first. The
// package joins a super-packet in the memory of its first packet, so that has room for all of it. All lie in one
// block: buffers of 64 KiB each would lie in the same few sets of the processor's caches.
func newBatch(count, mtu int) *batch {
	first, other := maxPacket+2*headroom, mtu+headroom
	block := make([]byte, first+(count-1)*other)
	buffers := make([][]byte, count)
	buffers[0] = block[:first:first]
	for i := 1; i < count; i++ {
		start := first + (i-1)*other
		buffers[i] = block[start : start+other : start+other]
	}
	return &batch{buffers: buffers, sizes: make([]int, count), packets: make([][]byte, 0, count)}
}

// read fills the batch with what the device gives next, and waits for it. Packets and an error may come
// together: see tun.ErrTooManySegments.
func (b *batch) read(device tun.Device) error {
	count, err := device.Read(b.buffers, b.sizes, headroom)
	b.packets = b.packets[:0]
	for i := range count {
		b.packets = append(b.packets, b.buffers[i][:headroom+b.sizes[i]])
	}
	return err
}

// clone gives packets in one block of new memory, with room at the first to join the others to it.
func clone(packets [][]byte) [][]byte {
	if len(packets) == 0 {
		return nil
	}
	first, total := packets[0], length(packets)
	block := make([]byte, total+total-len(first))
	copies := make([][]byte, len(packets))
	copies[0] = append(block[:0:total], first...)
	block = block[total:]
	for i, packet := range packets[1:] {
		end := copy(block, packet)
		copies[i+1], block = block[:end:end], block[end:]
	}
	return copies
}

func length(packets [][]byte) int {
	total := 0
	for _, packet := range packets {
		total += len(packet)
	}
	return total
}
