package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/qdisc/fifo"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/stack/gro"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	cloneDevice = "/dev/net/tun"
	nic         = 1
	// Largest number of half-open connections.
	maxHalfOpen = 65535
	// Largest number of packets in each queue to the device.
	queueLength = 4096
	// The tun package puts a virtio_net_hdr in front of each packet.
	headroom = 10
	// The longest packet that the tun package joins from several.
	maxPacket = 65535
)

// open opens the device and starts the stack on it. failed yields the error that ends the device.
func open(t *task, server *server) (failed <-chan error, settings effective, err error) {
	device, err := createDevice(t.Device.Name, t.Device.Offload)
	if err != nil {
		return nil, settings, err
	}
	link := &link{
		Endpoint: channel.New(0, uint32(t.Device.MTU), ""),
		device:   device,
		batches:  sync.Pool{New: func() any { return new([][]byte) }},
	}
	if t.Device.Offload {
		// The client is on the same kernel. Its checksums are partial, and the tun package completes them.
		link.LinkEPCapabilities = stack.CapabilityRXChecksumOffload
		link.SupportedGSOKind = stack.GVisorGSOSupported
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6},
	})
	if err := configure(s, link, t); err != nil {
		return nil, settings, err
	}
	serve(s, server)
	if server.application != nil {
		server.application.stack = dialer{s}
	}
	ended := make(chan error, 1)
	go func() { ended <- link.receive(t.Device.Offload, t.has("joins-arrivals")) }()
	return ended, effective{
		StackVersion:       version(),
		ReceiveBufferBytes: t.WindowBytes,
		SendBufferBytes:    t.WindowBytes,
		LargestPacketBytes: largest(t),
		Congestion:         congestion(s),
		ChecksumVerified:   !t.Device.Offload,
		ChecksumComputed:   true,
		Repairs:            t.Repairs,
	}, nil
}

// receiveBuffer returns the buffer size for a window. gVisor advertises half of a buffer, and keeps the rest for the
// overhead of packets.
func receiveBuffer(window int) int { return 2 * window }

func largest(t *task) int {
	if t.Device.Offload {
		return maxPacket
	}
	return t.Device.MTU
}

func configure(s *stack.Stack, link *link, t *task) error {
	window := t.WindowBytes
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: receiveBuffer(window), Max: receiveBuffer(window)}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: window, Max: window}
	sack, fixed := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(false)
	chosen := []tcpip.SettableTransportProtocolOption{&receive, &send, &sack, &fixed}
	if t.Congestion != "" {
		control := tcpip.CongestionControlOption(t.Congestion)
		chosen = append(chosen, &control)
	}
	switch t.Recovery {
	case "", "rack":
		// It is gVisor's own.
	case "sack":
		chosen = append(chosen, new(tcpip.TCPRecovery))
	default:
		return coded{fmt.Errorf("recover by %q: it is rack or sack", t.Recovery), 2}
	}
	for _, option := range chosen {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, option); err != nil {
			return fmt.Errorf("set the option %T: %s", option, err)
		}
	}
	// The buffers of datagrams.
	receiveAny := tcpip.ReceiveBufferSizeOption{Min: udp.MinBufferSize, Default: window, Max: window}
	sendAny := tcpip.SendBufferSizeOption{Min: udp.MinBufferSize, Default: window, Max: window}
	for _, option := range []any{receiveAny, sendAny} {
		if err := s.SetOption(option); err != nil {
			return fmt.Errorf("set the option %T: %s", option, err)
		}
	}
	var options stack.NICOptions
	if t.has("joins-departures") {
		// The queue collects packets, so that the tun package has segments to join.
		options.QDisc = fifo.New(link, runtime.GOMAXPROCS(0), queueLength)
	}
	if err := s.CreateNICWithOptions(nic, link, options); err != nil {
		return fmt.Errorf("give the stack its link: %s", err)
	}
	// The stack accepts packets to any address.
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return fmt.Errorf("accept packets to any address: %s", err)
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return fmt.Errorf("send packets from any address: %s", err)
	}
	s.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	return nil
}

func congestion(s *stack.Stack) string {
	var option tcpip.CongestionControlOption
	if err := s.TransportProtocolOption(tcp.ProtocolNumber, &option); err != nil {
		return "unknown"
	}
	return string(option)
}

// serve passes connections and datagrams to the server.
func serve(s *stack.Stack, server *server) {
	application, halfOpen, userTimeout := server.application, maxHalfOpen, tcpip.TCPUserTimeoutOption(0)
	if task := server.task.Application; task != nil {
		halfOpen = task.Backlog
		userTimeout = tcpip.TCPUserTimeoutOption(task.UserTimeoutSeconds * float64(time.Second))
	}
	forwarder := tcp.NewForwarder(s, receiveBuffer(server.task.WindowBytes), halfOpen, func(request *tcp.ForwarderRequest) {
		if application != nil && !application.accepts() {
			request.Complete(true)
			return
		}
		var queue waiter.Queue
		port := request.ID().LocalPort
		endpoint, err := request.CreateEndpoint(&queue)
		if err != nil {
			request.Complete(true)
			return
		}
		request.Complete(false)
		endpoint.SocketOptions().SetDelayOption(false)
		connection := gonet.NewTCPConn(&queue, endpoint)
		if application == nil {
			server.serve(connection, port)
			return
		}
		endpoint.SetSockOpt(&userTimeout)
		application.serve(abortable{connection, endpoint})
	})
	s.SetTransportProtocolHandler(tcp.ProtocolNumber, forwarder.HandlePacket)
	datagrams := udp.NewForwarder(s, func(request *udp.ForwarderRequest) bool {
		// gVisor takes port 0 for no address at all.
		if id := request.ID(); id.LocalPort == 0 || id.RemotePort == 0 {
			return true
		}
		var queue waiter.Queue
		endpoint, err := request.CreateEndpoint(&queue)
		if err != nil {
			return true
		}
		// With these options a write fails if a queue is full: the datagram was not sent.
		endpoint.SocketOptions().SetIPv4RecvError(true)
		endpoint.SocketOptions().SetIPv6RecvError(true)
		connection := gonet.NewUDPConn(&queue, endpoint)
		if application == nil {
			go server.serveDatagrams(connection)
		} else {
			application.receive(connection)
		}
		return true
	})
	s.SetTransportProtocolHandler(udp.ProtocolNumber, datagrams.HandlePacket)
}

// abortable is a connection that can be ended with a RST.
type abortable struct {
	*gonet.TCPConn
	endpoint tcpip.Endpoint
}

func (a abortable) abort() { a.endpoint.Abort() }

// dialer makes flows of datagrams, from any address.
type dialer struct{ *stack.Stack }

func (d dialer) dialUDP(of ends) (net.Conn, error) {
	var addresses [2]tcpip.FullAddress
	protocol := ipv4.ProtocolNumber
	for index, text := range []string{of.local, of.peer} {
		end, err := netip.ParseAddrPort(text)
		if err != nil {
			return nil, err
		}
		if end.Port() == 0 {
			return nil, fmt.Errorf("send a datagram to or from %s: port 0 is no host's", end)
		}
		if end.Addr().Is6() {
			protocol = ipv6.ProtocolNumber
		}
		addresses[index] = tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(end.Addr().AsSlice()), Port: end.Port()}
	}
	return gonet.DialUDP(d.Stack, &addresses[0], &addresses[1], protocol)
}

// link is the device as gVisor's link. It writes the packets of the stack to the device at once, and waits while the
// device is full.
type link struct {
	*channel.Endpoint
	device     tun.Device
	dispatcher stack.NetworkDispatcher
	// Each is a [][]byte. Each element has room for the longest packet.
	batches sync.Pool
}

func (l *link) Attach(dispatcher stack.NetworkDispatcher) {
	l.dispatcher = dispatcher
	l.Endpoint.Attach(dispatcher)
}

// WritePackets sends packets. The tun package joins segments if possible.
func (l *link) WritePackets(packets stack.PacketBufferList) (int, tcpip.Error) {
	batch := l.batches.Get().(*[][]byte)
	defer l.batches.Put(batch)
	list := packets.AsSlice()
	for len(*batch) < len(list) {
		*batch = append(*batch, make([]byte, 0, headroom+maxPacket))
	}
	bytes := (*batch)[:len(list)]
	for index, packet := range list {
		bytes[index] = bytes[index][:headroom]
		for _, part := range packet.AsSlices() {
			bytes[index] = append(bytes[index], part...)
		}
	}
	if _, err := l.device.Write(bytes, headroom); err != nil && errors.Is(err, os.ErrClosed) {
		return 0, &tcpip.ErrClosedForSend{}
	}
	return len(list), nil
}

// receive passes packets from the device to the stack, until the device fails. It may join segments.
func (l *link) receive(offload, joins bool) error {
	var joiner gro.GRO
	joiner.Init(joins)
	joiner.Dispatcher = l.dispatcher
	sizes := make([]int, l.device.BatchSize())
	packets := make([][]byte, len(sizes))
	for index := range packets {
		packets[index] = make([]byte, headroom+maxPacket)
	}
	for {
		count, err := l.device.Read(packets, sizes, headroom)
		if err != nil && !errors.Is(err, tun.ErrTooManySegments) {
			return fmt.Errorf("read from the device: %w", err)
		}
		for index := range count {
			bytes := packets[index][headroom : headroom+sizes[index]]
			packet := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(append([]byte(nil), bytes...))})
			packet.RXChecksumValidated = offload
			switch header.IPVersion(bytes) {
			case header.IPv4Version:
				packet.NetworkProtocolNumber = header.IPv4ProtocolNumber
				joiner.Enqueue(packet)
			case header.IPv6Version:
				packet.NetworkProtocolNumber = header.IPv6ProtocolNumber
				joiner.Enqueue(packet)
			}
			packet.DecRef()
		}
		joiner.Flush()
	}
}

// createDevice creates a TUN device in the network namespace of the process. The parent process configures it.
// tun.CreateTUN would always set up a virtio_net_hdr. With a file descriptor, the package uses the flags of the device.
func createDevice(name string, offload bool) (tun.Device, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, coded{fmt.Errorf("name a device %q: it takes 1 to %d bytes", name, unix.IFNAMSIZ-1), 2}
	}
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if offload {
		flags |= unix.IFF_VNET_HDR
	}
	request.SetUint16(flags)
	fd, err := unix.Open(cloneDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, coded{fmt.Errorf("open %s: %w; load the module tun", cloneDevice, err), 3}
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		code := 1
		if errors.Is(err, fs.ErrPermission) {
			code = 3
		}
		return nil, coded{fmt.Errorf("create the device %s: %w", name, err), code}
	}
	device, _, err := tun.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up the device %s: %w", name, err)
	}
	return device, nil
}
