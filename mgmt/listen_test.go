package mgmt

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func unixAddr(t *testing.T, name string) Address {
	t.Helper()
	a, err := ParseAddress("unix:" + filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// abandon leaves a socket file behind, as a process does that gets SIGKILL.
func abandon(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	a := unixAddr(t, "s")
	abandon(t, a.Path)
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", a.Path)
	if err != nil {
		t.Fatal("nobody answers on the new socket:", err)
	}
	_ = c.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(a.Path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the socket file is still there:", err)
	}
	_ = l.Close() // twice does no harm
}

func TestListenLeavesLiveSocketAlone(t *testing.T) {
	a := unixAddr(t, "s")
	first, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	before, err := os.Lstat(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Listen(a)
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("Listen = %v, want ErrInUse", err)
	}
	wantHint(t, err)
	after, err := os.Lstat(a.Path)
	if err != nil || !os.SameFile(before, after) {
		t.Fatal("the live socket was touched:", err)
	}
}

// A socket of another type is somebody's, whatever connect says.
func TestListenLeavesDatagramSocketAlone(t *testing.T) {
	a := unixAddr(t, "s")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: a.Path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := Listen(a); !errors.Is(err, ErrInUse) {
		t.Fatalf("Listen = %v, want ErrInUse", err)
	}
}

// Close removes the listener's own file only.
func TestCloseLeavesForeignFileAlone(t *testing.T) {
	a := unixAddr(t, "s")
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(a.Path); err != nil {
		t.Fatal(err)
	}
	other, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(a.Path); err != nil {
		t.Fatal("Close removed a socket that is not its own:", err)
	}
}

// Of many that start at once over a stale file, one gets the path, and it
// keeps it.
func TestListenRace(t *testing.T) {
	a := unixAddr(t, "s")
	abandon(t, a.Path)
	const n = 16
	var wg sync.WaitGroup
	ls := make([]net.Listener, n)
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { ls[i], errs[i] = Listen(a) })
	}
	wg.Wait()
	got := 0
	for i, l := range ls {
		if l != nil {
			got++
			defer func() { _ = l.Close() }()
		} else if !errors.Is(errs[i], ErrInUse) {
			t.Errorf("Listen = %v, want ErrInUse", errs[i])
		}
	}
	if got != 1 {
		t.Fatalf("%d listeners on one path", got)
	}
	c, err := net.Dial("unix", a.Path)
	if err != nil {
		t.Fatal("the winner's socket is gone:", err)
	}
	_ = c.Close()
}

func TestListenErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path string
		want error
	}{
		"regular file":      {file, ErrNotSocket},
		"directory":         {dir, ErrNotSocket},
		"missing directory": {filepath.Join(dir, "none", "s"), os.ErrNotExist},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(Address{Network: NetworkUnix, Path: c.path})
			if l != nil || !errors.Is(err, c.want) {
				t.Fatalf("Listen = %v, %v; want %v", l, err, c.want)
			}
			wantHint(t, err)
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "keep" {
		t.Fatal("the file was touched:", err)
	}
}

// A machine has the context identifiers that its transports give it, and never
// this one. Where the kernel has no AF_VSOCK at all the error is another, and
// has its own hint.
func TestListenVsockRefused(t *testing.T) {
	l, err := Listen(Address{Network: NetworkVsock, CID: 0xfffffff0, Port: 4321})
	if err == nil {
		_ = l.Close()
		t.Fatal("listening on a foreign context identifier")
	}
	wantHint(t, err)
	if !strings.Contains(err.Error(), "vsock:4294967280:4321") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("not one clear line: %q", err)
	}
}

func TestHints(t *testing.T) {
	vs := Address{Network: NetworkVsock, CID: CIDAny, Port: 1}
	us := Address{Network: NetworkUnix, Path: "/x/s"}
	for _, c := range []struct {
		a    Address
		err  error
		want string
	}{
		{vs, unix.EAFNOSUPPORT, "modprobe vsock"},
		{vs, unix.ENODEV, "modprobe vsock"},
		{vs, &os.PathError{Op: "open", Path: "/dev/vsock", Err: unix.ENOENT}, "modprobe vsock"},
		{vs, unix.EADDRNOTAVAIL, "vsock_loopback"},
		{vs, unix.EACCES, "CAP_NET_BIND_SERVICE"},
		{vs, unix.EADDRINUSE, "choose another address"},
		{us, ErrInUse, "choose another address"},
		{us, unix.EADDRINUSE, "choose another address"},
		{us, unix.ENOENT, "directory /x"},
		{us, unix.EACCES, "may not"},
		{us, unix.EIO, ""},
	} {
		got := hint(c.a, os.NewSyscallError("bind", c.err))
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("hint(%s, %v) = %q, want %q in it", c.a, c.err, got, c.want)
		}
	}
}

func wantHint(t *testing.T, err error) {
	t.Helper()
	var le *ListenError
	if !errors.As(err, &le) || le.Hint == "" {
		t.Errorf("no hint in %v", err)
	}
}
