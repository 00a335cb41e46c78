package main

import "golang.zx2c4.com/wireguard/tun"

const (
	// The free bytes that the package needs in front of a packet, for a virtio_net_hdr.
	headroom = 10
	// The length of the longest packet, super-packets included.
	maxPacket = 65535
)

// batch is memory for the packets of one Read: one packet, or the segments of one super-packet.
type batch struct {
	buffers [][]byte
	sizes   []int
	packets [][]byte
}

// newBatch returns a batch with room for count packets of the MTU's size. Its first buffer has room for the longest
// packet, because the package coalesces a super-packet in the memory of its first packet. All buffers are in one
// block: separate buffers of 64 KiB would map to the same few sets of the processor's caches.
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

// read waits for the next packets of the device and fills the batch with them. There may be packets and an error at
// the same time: see tun.ErrTooManySegments.
func (b *batch) read(device tun.Device) error {
	count, err := device.Read(b.buffers, b.sizes, headroom)
	b.packets = b.packets[:0]
	for i := range count {
		b.packets = append(b.packets, b.buffers[i][:headroom+b.sizes[i]])
	}
	return err
}

// clone copies packets to one new block of memory. The first copy has room to coalesce the others into it.
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
