package main

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/tun"
)

const cloneDevice = "/dev/net/tun"

// ends names the two devices: the near one in the network namespace of the process, and the far one in the namespace
// of a file of /proc/PID/ns.
type ends struct {
	near, far, farNamespace string
	offload                 bool
	// napi has the kernel join the packets that are written, where nothing is offloaded.
	napi bool
}

// create creates both devices.
func (e ends) create() (near, far tun.Device, err error) {
	near, err = createDevice(e.near, e)
	if err != nil {
		return nil, nil, err
	}
	err = inNamespace(e.farNamespace, func() error {
		far, err = createDevice(e.far, e)
		return err
	})
	if err != nil {
		near.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// createDevice creates a TUN device in the network namespace of the calling thread. It has no address and is down.
//
// tun.CreateTUN would always put a virtio_net_hdr in front of packets, and the package would split and coalesce them.
// With a descriptor, the package uses the framing that the device has.
func createDevice(name string, e ends) (tun.Device, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, usage("name a device %q: it takes 1 to %d bytes", name, unix.IFNAMSIZ-1)
	}
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if e.offload {
		flags |= unix.IFF_VNET_HDR
	}
	if e.napi {
		flags |= unix.IFF_NAPI
	}
	request.SetUint16(flags)

	fd, err := unix.Open(cloneDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, lacking("open %s: %w; load the module tun, or give the container that device", cloneDevice, err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		return nil, refused(name, err)
	}
	device, _, err := tun.CreateUnmonitoredTUNFromFD(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up the device %s: %w", name, err)
	}
	return device, nil
}

func refused(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return lacking("create the device %s: %w; run as root, or in a user namespace of your own", name, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("create the device %s: %w; choose a name that is not taken", name, err)
	default:
		return fmt.Errorf("create the device %s: %w", name, err)
	}
}

// inNamespace calls f on a thread in the network namespace of this file. The goroutine never unlocks the thread, so
// the thread ends with it, and no other goroutine runs in that namespace.
func inNamespace(file string, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- enterAndCall(file, f)
	}()
	return <-result
}

func enterAndCall(file string, f func() error) error {
	namespace, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the network namespace %s: %w; see that its process is alive", file, err)
	}
	defer unix.Close(namespace)
	if err := unix.Setns(namespace, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace %s: %w; it takes CAP_SYS_ADMIN in it", file, err)
	}
	return f()
}
