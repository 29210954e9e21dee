package mgmt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
)

// maxBody bounds a request's body.
const maxBody = 4 << 10

// moderationPath is the resource of a virtqueue that can be written.
const moderationPath = "/v1/devices/{name}/queues/{queue}/moderation"

var (
	// ErrNoDevice is what functions of Options return, wrapped, for a name that no
	// device has.
	ErrNoDevice = errors.New("no such device")
	// ErrValue is what functions of Options return, wrapped, for a virtqueue or an
	// engine that does not exist, and for a device that cannot be.
	ErrValue = errors.New("bad value")
	// ErrExists is what Options.AddDevice returns, wrapped, for a name that is taken.
	ErrExists = errors.New("the device exists")
)

// Moderation is the body of PUT on a queue's moderation, and of the answer.
type Moderation struct {
	// Engine is the host's moderation engine as on the command line of
	// "vhostnet serve": "off", "fixed:64/32", "net-dim", "adaptive" and so on.
	Engine string `json:"engine"`
}

// localKey marks the requests that came over a Unix socket.
type localKey struct{}

// markLocal tells handlers where a connection comes from.
func markLocal(ctx context.Context, c net.Conn) context.Context {
	if a := c.LocalAddr(); a != nil && a.Network() == NetworkUnix {
		return context.WithValue(ctx, localKey{}, true)
	}
	return ctx
}

// mayChange refuses what did not come over a Unix socket.
func mayChange(w http.ResponseWriter, r *http.Request) bool {
	local := r.Context().Value(localKey{}) != nil
	if !local {
		fail(w, http.StatusForbidden, "changes are made over a Unix socket only")
	}
	return local
}

// answer is reply, or fail with what err says.
func answer(w http.ResponseWriter, status int, body any, err error) {
	switch {
	case err == nil:
		reply(w, status, body)
	case errors.Is(err, ErrNoDevice):
		fail(w, http.StatusNotFound, err.Error())
	case errors.Is(err, ErrValue):
		fail(w, http.StatusBadRequest, err.Error())
	case errors.Is(err, ErrExists):
		fail(w, http.StatusConflict, err.Error())
	default:
		fail(w, http.StatusInternalServerError, err.Error())
	}
}

// moderation changes the host's engine of one virtqueue. Over AF_VSOCK it is
// refused: a guest that can reach the API sets its own limits through its control
// queue and has no say in the host's.
func (s *Server) moderation(w http.ResponseWriter, r *http.Request) {
	if s.opts.SetModeration == nil {
		notFound(w, r)
		return
	}
	if !mayChange(w, r) {
		return
	}
	queue, err := strconv.ParseUint(r.PathValue("queue"), 10, 16)
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf("%q is not the index of a virtqueue", r.PathValue("queue")))
		return
	}
	var m Moderation
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err = d.Decode(&m); err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		fail(w, http.StatusBadRequest, fmt.Sprintf(`the body is not {"engine":"..."}: %v`, err))
		return
	}
	err = s.opts.SetModeration(r.PathValue("name"), int(queue), m.Engine)
	answer(w, http.StatusOK, m, err)
}

// SetModeration changes the host's moderation engine of one data virtqueue (0 is
// the first receive queue, 1 the first transmit queue) while it runs. It fails
// with a [*StatusError]: 400 for an engine or a virtqueue that does not exist,
// 403 over AF_VSOCK, 404 for an unknown device.
func (c *Client) SetModeration(ctx context.Context, device string, queue int, engine string) error {
	body, err := json.Marshal(Moderation{Engine: engine})
	if err != nil {
		return fmt.Errorf("mgmt: %w", err)
	}
	var answer Moderation
	path := fmt.Sprintf("/v1/devices/%s/queues/%d/moderation", url.PathEscape(device), queue)
	return c.do(ctx, http.MethodPut, path, bytes.NewReader(body), &answer)
}
