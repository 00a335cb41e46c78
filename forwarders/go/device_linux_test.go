package main

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inNewNamespace calls f in a new network namespace, with the file of another new one. Both are gone afterwards.
func inNewNamespace(t *testing.T, f func(other string)) {
	ended, skip := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			skip <- err
			return
		}
		other, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(other)
			err = unix.Unshare(unix.CLONE_NEWNET)
		}
		if err == nil {
			err = unix.Access(cloneDevice, unix.R_OK|unix.W_OK)
		}
		if err != nil {
			skip <- err
			return
		}
		f(fmt.Sprintf("/proc/self/fd/%d", other))
	}()
	<-ended
	select {
	case err := <-skip:
		t.Skipf("SKIP: no network namespaces and TUN devices for this user: %v", err)
	default:
	}
}

func TestDevicesAreInTheirNamespacesWithTheFramingThatWasAskedFor(t *testing.T) {
	for _, offload := range []bool{false, true} {
		inNewNamespace(t, func(other string) {
			near, far, err := ends{near: "near0", far: "far0", farNamespace: other, offload: offload, napi: !offload}.create()
			if err != nil {
				t.Error(err)
				return
			}
			defer near.Close()
			defer far.Close()
			if interfaces := names(t); interfaces != "lo near0" {
				t.Error(interfaces)
			}
			inNamespace(other, func() error {
				if interfaces := names(t); interfaces != "lo far0" {
					t.Error(interfaces)
				}
				return nil
			})
			request, _ := unix.NewIfreq("")
			if err := unix.IoctlIfreq(int(far.File().Fd()), unix.TUNGETIFF, request); err != nil {
				t.Error(err)
			}
			framed, napi := request.Uint16()&unix.IFF_VNET_HDR != 0, request.Uint16()&unix.IFF_NAPI != 0
			if framed != offload || napi == offload {
				t.Errorf("offload %v, virtio_net_hdr %v, NAPI %v", offload, framed, napi)
			}
		})
	}
}

// names returns the names of the interfaces in the calling thread's namespace.
func names(t *testing.T) string {
	var names []string
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer unix.Close(socket)
	for _, name := range []string{"lo", "near0", "far0"} {
		request, _ := unix.NewIfreq(name)
		if unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, request) == nil {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func TestANameThatIsTakenAndANamespaceThatIsGoneAreErrors(t *testing.T) {
	inNewNamespace(t, func(other string) {
		first, err := createDevice("near0", ends{})
		if err != nil {
			t.Error(err)
			return
		}
		defer first.Close()
		_, _, err = ends{near: "near0", far: "far0", farNamespace: other}.create()
		if !errors.Is(err, unix.EBUSY) || exitCode(err) != 1 || !strings.Contains(err.Error(), "not taken") {
			t.Error(err)
		}
		_, _, err = ends{near: "near1", far: "far0", farNamespace: "/proc/0/ns/net"}.create()
		if !errors.Is(err, unix.ENOENT) || exitCode(err) != 1 || !strings.Contains(err.Error(), "/proc/0/ns/net") {
			t.Error(err)
		}
	})
}
