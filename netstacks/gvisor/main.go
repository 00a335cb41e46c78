// gVisor's stack as a separate process, which rust-tun-perf measures like any other external stack.
// docs/external-stack.md describes the protocol. The program opens the device of its task with wireguard-go's tun
// package, and serves the streams and requests of the run at every address.
//
// An error is one line on standard error. Then the exit code is 2 for an invalid task, 3 if the system lacks something,
// and 1 otherwise. With -version the program prints the versions of Go and of its modules.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

const protocol = 1

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(exitCode(err))
	}
}

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

func exitCode(err error) int {
	if c := (coded{}); errors.As(err, &c) {
		return c.code
	}
	return 1
}

// task is the first line of standard input.
type task struct {
	Protocol int `json:"protocol"`
	Device   struct {
		Name    string `json:"name"`
		MTU     int    `json:"mtu"`
		Offload bool   `json:"offload"`
	} `json:"device"`
	WindowBytes int  `json:"window_bytes"`
	Threads     *int `json:"threads"`
	// The workarounds that are on; see netstacks/src/workarounds.rs.
	Repairs []string `json:"repairs"`
	// The stack's own choices if they are empty.
	Congestion string     `json:"congestion"`
	Recovery   string     `json:"recovery"`
	Streams    []stream   `json:"streams"`
	Requests   *requests  `json:"requests"`
	Datagrams  *datagrams `json:"datagrams"`
	// If set, the run plays the application, and there is no load.
	Application *struct {
		Backlog            int     `json:"backlog"`
		UserTimeoutSeconds float64 `json:"user_timeout_seconds"`
	} `json:"application"`
}

// has returns whether a workaround is on.
func (t *task) has(name string) bool { return slices.Contains(t.Repairs, name) }

// stream is a stream of payload. Each has its own port.
type stream struct {
	Port        uint16  `json:"port"`
	Direction   string  `json:"direction"`
	WarmupBytes uint64  `json:"warmup_bytes"`
	Bytes       *uint64 `json:"bytes"`
	BufferBytes int     `json:"buffer_bytes"`
	Seed        uint64  `json:"seed"`
}

// requests are served at all other ports.
type requests struct {
	Protocol      string `json:"protocol"`
	RequestBytes  int    `json:"request_bytes"`
	ResponseBytes int    `json:"response_bytes"`
	MarkBytes     int    `json:"mark_bytes"`
	Closes        bool   `json:"closes"`
	Seed          uint64 `json:"seed"`
}

// ready is the reply after the device was created.
type ready struct {
	Offload   bool      `json:"offload"`
	Effective effective `json:"effective"`
}

// effective are the settings that the stack really uses.
type effective struct {
	StackVersion       string   `json:"stack_version"`
	ReceiveBufferBytes int      `json:"receive_buffer_bytes"`
	SendBufferBytes    int      `json:"send_buffer_bytes"`
	WindowScale        *int     `json:"window_scale"`
	LargestPacketBytes int      `json:"largest_packet_bytes"`
	Congestion         string   `json:"congestion"`
	ChecksumVerified   bool     `json:"checksum_verified"`
	ChecksumComputed   bool     `json:"checksum_computed"`
	Repairs            []string `json:"repairs"`
}

func run(arguments []string, input io.Reader, output io.Writer) error {
	switch {
	case len(arguments) == 1 && arguments[0] == "-version":
		_, err := fmt.Fprintln(output, versions())
		return err
	case len(arguments) > 0:
		return coded{fmt.Errorf("unexpected argument %q", arguments[0]), 2}
	}
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return coded{errors.New("there is no task on standard input"), 2}
	}
	var t task
	if err := json.Unmarshal(lines.Bytes(), &t); err != nil {
		return coded{fmt.Errorf("read the task: %w", err), 2}
	}
	if t.Protocol != protocol {
		return coded{fmt.Errorf("the task is of version %d of the protocol; this program has %d", t.Protocol, protocol), 2}
	}
	if t.Threads != nil {
		runtime.GOMAXPROCS(*t.Threads)
	}
	server := newServer(&t)
	answers := json.NewEncoder(output)
	if t.Application != nil {
		server.application = newApplication(answers)
	}
	failed, settings, err := open(&t, server)
	if err != nil {
		return err
	}
	return obey(lines, answers, server, settings, failed)
}

// obey executes the lines of input, until the input ends or the device fails.
func obey(lines *bufio.Scanner, answers *json.Encoder, server *server, settings effective, failed <-chan error) error {
	if err := answers.Encode(map[string]ready{"ready": {Offload: server.task.Device.Offload, Effective: settings}}); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	orders := make(chan string)
	go func() {
		defer close(orders)
		for lines.Scan() {
			orders <- lines.Text()
		}
	}()
	for {
		select {
		case err := <-failed:
			return err
		case order, more := <-orders:
			switch {
			case !more:
				return nil
			case order == `"start"`:
			case order == `"report"`:
				if err := answers.Encode(server.report()); err != nil {
					return fmt.Errorf("answer: %w", err)
				}
			case server.application != nil:
				if err := server.application.obey(order); err != nil {
					return err
				}
			case server.flow != nil && server.flow.begin(order):
			default:
				return coded{fmt.Errorf("do %s: it is \"start\" or \"report\"", order), 2}
			}
		}
	}
}

// versions returns one line: the version of Go, and each module by the last element of its path.
func versions() string {
	words := []string{runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			words = append(words, path.Base(module.Path)+" "+module.Version)
		}
	}
	return strings.Join(words, ", ")
}

// version returns the version of gVisor.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "gvisor.dev/gvisor" {
				return strings.TrimPrefix(module.Version, "v0.0.0-")
			}
		}
	}
	return "unknown"
}
