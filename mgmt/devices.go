package mgmt

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/vhostnet/vhostnet/netdev"
)

// Removed is the answer of DELETE on a device.
type Removed struct {
	Name string `json:"name"`
}

// addDevice passes the body on as it is.
func (s *Server) addDevice(w http.ResponseWriter, r *http.Request) {
	if !mayChange(w, r) {
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("the body cannot be read: %v", err))
		return
	}
	name, err := s.opts.AddDevice(body)
	if err != nil {
		answer(w, 0, nil, err)
		return
	}
	for _, d := range s.opts.Devices() {
		if d.Name == name {
			reply(w, http.StatusCreated, d)
			return
		}
	}
	fail(w, http.StatusNotFound, fmt.Sprintf("the device %q was removed at once", name))
}

func (s *Server) removeDevice(w http.ResponseWriter, r *http.Request) {
	if !mayChange(w, r) {
		return
	}
	name := r.PathValue("name")
	answer(w, http.StatusOK, Removed{Name: name}, s.opts.RemoveDevice(name))
}

// AddDevice adds the device that a JSON object describes, with the keys of a table
// of the file for "vhostnet serve --config", and returns its snapshot. It fails
// with a [*StatusError]: 400 for an object that describes no device, 403 over
// AF_VSOCK, 405 if the server's devices are fixed, 409 for a name that is taken,
// 500 if the device cannot be opened.
func (c *Client) AddDevice(ctx context.Context, object []byte) (netdev.DeviceSnapshot, error) {
	var d netdev.DeviceSnapshot
	err := c.do(ctx, http.MethodPost, "/v1/devices", bytes.NewReader(object), &d)
	return d, err
}

// RemoveDevice removes a device and returns when its socket and its port are free.
// It fails with a [*StatusError]: 403 over AF_VSOCK, 404 for an unknown device, 405
// if the server's devices are fixed.
func (c *Client) RemoveDevice(ctx context.Context, name string) error {
	var r json.RawMessage
	return c.do(ctx, http.MethodDelete, "/v1/devices/"+url.PathEscape(name), nil, &r)
}
