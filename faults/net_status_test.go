package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/netdev"
)

// statusAPI is the path of a status API's socket.
type statusAPI string

// serveAPI is scripted.Serve with a status API.
func serveAPI(t *testing.T, port string, args ...string) (*scripted.Child, statusAPI) {
	t.Helper()
	api := statusAPI(filepath.Join(t.TempDir(), "api"))
	c := scripted.Serve(t, port, append(args, "--api=unix:"+string(api))...)
	return c, api
}

// serveTAPWithAPI is serveAPI on the host's TAP.
func serveTAPWithAPI(t *testing.T, h *scripted.Host, args ...string) (*scripted.Child, statusAPI) {
	t.Helper()
	c, api := serveAPI(t, "tap:"+scripted.TAP, args...)
	c.Host = h
	return c, api
}

// device asks for the device's state. That is a request and a reply, and nothing
// of HTTP is tried here.
func (a statusAPI) device(t *testing.T) netdev.DeviceSnapshot {
	t.Helper()
	b, err := a.get()
	if err != nil {
		t.Fatal("status API:", err)
	}
	var list struct{ Devices []netdev.DeviceSnapshot }
	if err := json.Unmarshal(b, &list); err != nil || len(list.Devices) != 1 {
		t.Fatalf("status API: %v: %s", err, b)
	}
	return list.Devices[0]
}

func (a statusAPI) get() ([]byte, error) {
	conn, err := net.Dial("unix", string(a))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(scripted.Hang)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(conn, "GET /v1/devices HTTP/1.0\r\nHost: vhostnet\r\n\r\n"); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		return nil, err
	}
	head, body, ok := bytes.Cut(b, []byte("\r\n\r\n"))
	if !ok || !bytes.Contains(head, []byte(" 200 ")) {
		return nil, fmt.Errorf("answer %q", b)
	}
	return body, nil
}

// queue asks for the state of one virtqueue.
func (a statusAPI) queue(t *testing.T, q int) netdev.QueueSnapshot {
	t.Helper()
	return a.device(t).Queues[q]
}
