package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestMain makes the test program its own peers.
func TestMain(m *testing.M) {
	switch os.Getenv("PEER") {
	case "testpmd":
		fakeTestpmd(os.Args[1:])
	case "driver":
		fakeDriver(os.Args[1])
	case "guest":
		fakeGuest(os.Args[1])
	case "daemon":
		fakeDaemon(os.Args[1])
	default:
		goleak.VerifyTestMain(m)
	}
}

// fake is a command that runs the test program as a peer.
func fake(ctx context.Context, which string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	// With the race detector a program would end a second late.
	cmd.Env = append(os.Environ(), "PEER="+which, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// fakeTestpmd behaves as testpmd at its prompt, as far as this package sees it.
// While it forwards, each look finds 1000 packets more, at a rate of 5000 a second.
// In the modes mac and csum it breaks.
func fakeTestpmd(args []string) {
	mode := ""
	for _, a := range args {
		if v, ok := strings.CutPrefix(a, "--forward-mode="); ok {
			mode = v
		}
	}
	running, looks := false, 0
	in := bufio.NewScanner(os.Stdin)
	for fmt.Print("EAL: some lines\ntestpmd> "); in.Scan(); fmt.Print("testpmd> ") {
		fmt.Println(in.Text()) // it echoes what it is told
		switch f := strings.Fields(in.Text()); {
		case f[0] == "start" && !running:
			running = true
			fmt.Println(mode, "packet forwarding - ports=1 - cores=1")
		case f[0] == "start":
			fmt.Println("Packet forwarding already started")
		case f[0] == "stop" && running:
			running = false
			fmt.Println("Telling cores to stop...\n\nDone.")
		case f[0] == "stop":
			fmt.Println("Packet forwarding not started")
		case in.Text() == "show port stats 0" && mode == "csum":
			fmt.Println("something else")
		case in.Text() == "show port stats 0" && mode == "mac":
			fmt.Fprintln(os.Stderr, "PANIC in rte_panic()")
			os.Exit(3)
		case in.Text() == "show port stats 0":
			rx, tx := 0, 0
			if running && mode != "txonly" && mode != "null" {
				rx = 5000
			}
			if running && mode != "rxonly" && mode != "null" {
				tx = 5000
			}
			if running {
				looks++
			}
			fmt.Printf(statsFormat, looks*rx/5, looks*tx/5, rx, tx)
		case f[0] == "quit":
			fmt.Println("Bye...")
			return
		default:
			fmt.Println("Command not found")
		}
	}
}

// fakeDriver answers orders with a window of the given number of packets, or with
// whatever is given if that is no number.
func fakeDriver(answer string) {
	in := bufio.NewScanner(os.Stdin)
	for fmt.Print(DriverPrompt); in.Scan(); fmt.Print(DriverPrompt) {
		var o Order
		if err := json.Unmarshal(in.Bytes(), &o); err != nil {
			answer = err.Error()
		}
		n, err := strconv.Atoi(answer)
		if err != nil {
			fmt.Println(answer)
			continue
		}
		_ = json.NewEncoder(os.Stdout).Encode(Answer{Window: Window{
			Packets: float64(n), Seconds: o.Length.Seconds(), Counted: true, Calls: float64(o.BackEnd), Kicks: o.WarmUp.Seconds(),
		}})
	}
}

// fakeGuest gives the same answer to every line.
func fakeGuest(answer string) {
	in := bufio.NewScanner(os.Stdin)
	for fmt.Print(DriverPrompt); in.Scan(); fmt.Print(DriverPrompt) {
		fmt.Println(answer)
	}
}

// fakeDaemon listens until SIGTERM, or gives up.
func fakeDaemon(path string) {
	if path == "" {
		fmt.Println("no path")
		os.Exit(1)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	<-end
}
