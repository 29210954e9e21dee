package mgmt

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/netdev"
)

// addsAndRemoves is a server that knows a few names.
func addsAndRemoves() Options {
	devices := map[string]bool{"net0": true}
	return Options{
		Devices: func() (list []netdev.DeviceSnapshot) {
			for name := range devices {
				list = append(list, netdev.DeviceSnapshot{Name: name, State: netdev.StateServing})
			}
			return list
		},
		AddDevice: func(object []byte) (string, error) {
			name := string(object)
			switch {
			case name == "broken":
				return "", errors.New("no such interface")
			case name == "bad":
				return "", fmt.Errorf("%w: unknown key", ErrValue)
			case devices[name]:
				return "", fmt.Errorf("%w: %q", ErrExists, name)
			}
			devices[name] = true
			return name, nil
		},
		RemoveDevice: func(name string) error {
			if !devices[name] {
				return fmt.Errorf("%w: %q", ErrNoDevice, name)
			}
			delete(devices, name)
			return nil
		},
	}
}

func TestAddAndRemoveDevice(t *testing.T) {
	a := unixAddr(t, "api")
	l, err := Listen(a)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- New(addsAndRemoves()).Serve(t.Context(), l) }()
	t.Cleanup(func() { <-done })
	c, err := NewClient(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	d, err := c.AddDevice(t.Context(), []byte("net1"))
	if err != nil || d.Name != "net1" || d.State != netdev.StateServing {
		t.Fatalf("%+v, %v", d, err)
	}
	for object, want := range map[string]int{
		"net0": http.StatusConflict, "bad": http.StatusBadRequest, "broken": http.StatusInternalServerError,
		strings.Repeat("x", maxBody+1): http.StatusBadRequest,
	} {
		var se *StatusError
		if _, err := c.AddDevice(t.Context(), []byte(object)); !errors.As(err, &se) || se.Status != want {
			t.Errorf("%.10s: %v", object, err)
		}
	}
	if err := c.RemoveDevice(t.Context(), "net1"); err != nil {
		t.Error(err)
	}
	var se *StatusError
	if err := c.RemoveDevice(t.Context(), "net1"); !errors.As(err, &se) || se.Status != http.StatusNotFound {
		t.Error(err)
	}
	if list, err := c.Devices(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// Only over a Unix socket, and only where devices can change.
func TestDevicesAreFixed(t *testing.T) {
	for _, c := range []struct {
		name, method, path string
		o                  Options
		status             int
		allow              string
	}{
		{"add from elsewhere", "POST", "/v1/devices", addsAndRemoves(), http.StatusForbidden, ""},
		{"remove from elsewhere", "DELETE", "/v1/devices/net0", addsAndRemoves(), http.StatusForbidden, ""},
		{"add to fixed ones", "POST", "/v1/devices", Options{}, http.StatusMethodNotAllowed, "GET, HEAD"},
		{"remove fixed ones", "DELETE", "/v1/devices/net0", Options{}, http.StatusMethodNotAllowed, "GET, HEAD"},
		{"another method", "PUT", "/v1/devices", addsAndRemoves(), http.StatusMethodNotAllowed, "GET, HEAD, POST"},
		{"another method on one", "PUT", "/v1/devices/net0", addsAndRemoves(), http.StatusMethodNotAllowed, "GET, HEAD, DELETE"},
	} {
		w := httptest.NewRecorder()
		New(c.o).ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader("net1")))
		if w.Code != c.status || w.Header().Get("Allow") != c.allow {
			t.Errorf("%s: %d, Allow %q", c.name, w.Code, w.Header().Get("Allow"))
		}
	}
}
