package mgmt

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vhostnet/vhostnet/netdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testVersion = VersionInfo{Version: "v1.2.3", Revision: "abc", Go: "go1.26"}

func testDevices() []netdev.DeviceSnapshot {
	return []netdev.DeviceSnapshot{
		{Name: "net0", Port: "null:", QueuePairs: 2, Queues: []netdev.QueueSnapshot{
			{Index: 0, Kind: "rx", Packets: 1 << 63, Drops: map[string]uint64{"csum_range": 1}},
		}},
		{Name: "with space/and slash", Port: "tap:vn0"},
	}
}

// start serves on a Unix socket until the test ends, and returns its address
// and a function that ends it and gives Serve's error.
func start(t *testing.T, devices func() []netdev.DeviceSnapshot) (Address, func() error) {
	t.Helper()
	a := unixAddr(t, "api")
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- New(Options{Devices: devices, Version: testVersion}).Serve(ctx, l) }()
	stop := func() error {
		cancel()
		err := <-done
		done <- err
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return a, stop
}

func TestClient(t *testing.T) {
	a, stop := start(t, testDevices)
	c, err := Dial(t.Context(), a.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	got, err := c.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(testDevices(), got); d != "" {
		t.Error(d)
	}
	for _, want := range testDevices() {
		got, err := c.Device(t.Context(), want.Name)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	v, err := c.Version(t.Context())
	if err != nil || v != testVersion {
		t.Fatalf("Version = %+v, %v", v, err)
	}
	var se *StatusError
	if _, err := c.Device(t.Context(), "none"); !errors.As(err, &se) || se.Status != http.StatusNotFound ||
		!strings.Contains(se.Message, `"none"`) {
		t.Fatalf("Device(none): %v", err)
	}
	if err := stop(); err != nil {
		t.Fatal("Serve:", err)
	}
	if _, err := os.Lstat(a.Path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("the socket file is still there:", err)
	}
	if _, err := Dial(t.Context(), a.String()); err == nil || !strings.Contains(err.Error(), a.Path) {
		t.Fatalf("Dial after the end: %v", err)
	}
}

func TestNoDevicesIsAnEmptyList(t *testing.T) {
	for name, devices := range map[string]func() []netdev.DeviceSnapshot{
		"nil function": nil,
		"nil list":     func() []netdev.DeviceSnapshot { return nil },
	} {
		w := httptest.NewRecorder()
		New(Options{Devices: devices}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/devices", nil))
		if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusOK || got != `{"devices":[]}` {
			t.Errorf("%s: %d %s", name, w.Code, got)
		}
	}
}

func TestStatusAndBody(t *testing.T) {
	s := New(Options{Devices: testDevices, Version: testVersion})
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/devices", 200},
		{"HEAD", "/v1/devices", 200},
		{"GET", "/v1/devices?x=y", 200},
		{"GET", "/v1/devices/net0", 200},
		{"GET", "/v1/devices/with%20space%2Fand%20slash", 200},
		{"GET", "/v1/version", 200},
		{"GET", "/", 404},
		{"GET", "/v1", 404},
		{"GET", "/v1/devices/", 404},
		{"GET", "/v1/devices/none", 404},
		{"GET", "/v1/devices/net0/x", 404},
		{"GET", "/v2/devices", 404},
		{"GET", "//v1/version", 404},
		{"GET", "/v1/../v1/version", 404},
		{"POST", "/nowhere", 404},
		{"POST", "/v1/devices", 405},
		{"PUT", "/v1/devices/net0", 405},
		{"DELETE", "/v1/devices/none", 405},
		{"PATCH", "/v1/version", 405},
		{"OPTIONS", "/v1/version", 405},
		{"BREW", "/v1/version", 405},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		what := c.method + " " + c.path
		if w.Code != c.status {
			t.Errorf("%s: status %d, want %d", what, w.Code, c.status)
		}
		if ct := w.Header().Get("Content-Type"); ct != "application/json" {
			t.Errorf("%s: content type %q", what, ct)
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: no JSON: %q", what, w.Body)
		}
		if c.status == http.StatusOK {
			continue
		}
		var e ErrorInfo
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Status != c.status || e.Error == "" {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
		if allow := w.Header().Get("Allow"); (c.status == http.StatusMethodNotAllowed) != (allow == "GET, HEAD") {
			t.Errorf("%s: Allow is %q", what, allow)
		}
	}
}

// What arrives is not HTTP, or too much of it: the server refuses and goes on.
func TestHostileRequests(t *testing.T) {
	a, stop := start(t, testDevices)
	for name, req := range map[string]string{
		"not HTTP":     "\x00\x01\x02\x03\r\n\r\n",
		"huge header":  "GET /v1/version HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<16) + "\r\n\r\n",
		"dot segments": "GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
	} {
		c, err := net.Dial("unix", a.Path)
		if err != nil {
			t.Fatal(name, err)
		}
		_, _ = io.WriteString(c, req) // the server may hang up before it has all
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode < 400 {
				t.Errorf("%s: status %d", name, resp.StatusCode)
			}
		}
		_ = c.Close()
	}
	c, err := Dial(t.Context(), a.String())
	if err != nil {
		t.Fatal("the server is gone:", err)
	}
	c.Close()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// A connection over which nothing was sent, one in the middle of a request, and
// a request that does not end: none of them keeps the server from closing.
func TestCloseDoesNotWaitForPeers(t *testing.T) {
	entered := make(chan struct{})
	release := make(chan struct{})
	a, stop := start(t, func() []netdev.DeviceSnapshot {
		close(entered)
		<-release
		return nil
	})
	for _, req := range []string{"", "GET /v1/ver", "GET /v1/devices HTTP/1.1\r\nHost: x\r\n\r\n"} {
		c, err := net.Dial("unix", a.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := io.WriteString(c, req); err != nil {
			t.Fatal(err)
		}
	}
	<-entered
	if err := stop(); err != nil { // hangs if it waits
		t.Fatal(err)
	}
	close(release)
}

// More connections than a listener takes wait; those of another listener do not.
func TestConnectionsAreBounded(t *testing.T) {
	a := unixAddr(t, "one")
	b := unixAddr(t, "two")
	la, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	lb, err := Listen(b)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(Options{Version: testVersion}).Serve(ctx, la, lb) }()

	conns := make([]net.Conn, maxConns)
	for i := range conns {
		if conns[i], err = net.Dial("unix", a.Path); err != nil {
			t.Fatal(err)
		}
		// An answer shows that the server has taken the connection.
		if _, err := fmt.Fprint(conns[i], "GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conns[i]), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	c, err := Dial(t.Context(), b.String())
	if err != nil {
		t.Fatal("the other listener is starved:", err)
	}
	c.Close()

	// The next one is answered as soon as one goes.
	answered := make(chan error, 1)
	go func() {
		c, err := Dial(ctx, a.String())
		if err == nil {
			c.Close()
		}
		answered <- err
	}()
	_ = conns[0].Close()
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	for _, c := range conns[1:] {
		_ = c.Close()
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestServeReportsFailedListener(t *testing.T) {
	a := unixAddr(t, "api")
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := New(Options{}).Serve(t.Context(), l); err == nil {
		t.Fatal("no error for a closed listener")
	}
}

func TestServeWithoutListeners(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := New(Options{}).Serve(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestClientAddresses(t *testing.T) {
	for _, s := range []string{"vsock:1234", "tcp:1", ""} {
		if _, err := Dial(t.Context(), s); !errors.Is(err, ErrAddress) {
			t.Errorf("Dial(%q) = %v, want ErrAddress", s, err)
		}
	}
}

// A server that answers something else than the API's.
func TestClientDistrustsServer(t *testing.T) {
	a := unixAddr(t, "s")
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/version" {
			http.Error(w, "<html>", http.StatusTeapot)
			return
		}
		_, _ = io.WriteString(w, "<html>")
	})}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	c, err := NewClient(a)
	if err != nil {
		t.Fatal(err)
	}
	var se *StatusError
	if _, err := c.Version(t.Context()); !errors.As(err, &se) || se.Message != "I'm a teapot" {
		t.Errorf("Version: %v", err)
	}
	if _, err := c.Devices(t.Context()); err == nil {
		t.Error("Devices: no error")
	}
	c.Close()
	_ = srv.Close()
	<-done
}
