package mgmt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mdlayher/vsock"

	"github.com/vhostnet/vhostnet/netdev"
)

// maxAnswer bounds what a client reads from a server.
const maxAnswer = 64 << 20

// dialTimeout bounds a connection attempt. AF_VSOCK's own is 2 s, and a context
// identifier behind which nobody is uses all of it.
const dialTimeout = 5 * time.Second

// StatusError is an answer of the server that is neither 200 nor 201.
type StatusError struct {
	// Status is the HTTP status.
	Status int
	// Message is the server's explanation.
	Message string
}

// Error gives "mgmt: status N: message".
func (e *StatusError) Error() string {
	return fmt.Sprintf("mgmt: status %d: %s", e.Status, e.Message)
}

// Client asks a server. Its methods may be called from several goroutines.
type Client struct {
	addr Address
	http http.Client
}

// NewClient makes a client for an address; nothing is sent before the first
// question. Over vsock the address must name a context identifier that can be
// dialled: "vsock:1:PORT" for this machine (with vsock_loopback), "vsock:2:PORT"
// from a guest to its host, "vsock:CID:PORT" from a host to a guest.
func NewClient(a Address) (*Client, error) {
	if a.Network == NetworkVsock && a.CID == CIDAny {
		return nil, fmt.Errorf("%w %q: to dial, name the context identifier: vsock:CID:PORT", ErrAddress, a)
	}
	c := &Client{addr: a}
	c.http.Transport = &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, a) },
		MaxIdleConns:       2,
		IdleConnTimeout:    idleTimeout / 2, // before the server hangs up
		DisableCompression: true,
	}
	return c, nil
}

// Dial makes a client for "unix:PATH" or "vsock:CID:PORT" and asks the server
// for its version, so that an error tells whether the server is there.
func Dial(ctx context.Context, address string) (*Client, error) {
	a, err := ParseAddress(address)
	if err != nil {
		return nil, err
	}
	c, err := NewClient(a)
	if err != nil {
		return nil, err
	}
	if _, err := c.Version(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func dial(ctx context.Context, a Address) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if a.Network == NetworkVsock {
		return vsock.DialContext(ctx, a.CID, a.Port, nil)
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", a.Path)
}

// Close gives up the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Devices returns a snapshot of every device.
func (c *Client) Devices(ctx context.Context) ([]netdev.DeviceSnapshot, error) {
	var list DeviceList
	err := c.get(ctx, "/v1/devices", &list)
	return list.Devices, err
}

// Device returns a snapshot of one device; a [*StatusError] with status 404 if
// there is none of that name.
func (c *Client) Device(ctx context.Context, name string) (netdev.DeviceSnapshot, error) {
	var d netdev.DeviceSnapshot
	err := c.get(ctx, "/v1/devices/"+url.PathEscape(name), &d)
	return d, err
}

// Version returns the server's version.
func (c *Client) Version(ctx context.Context) (VersionInfo, error) {
	var v VersionInfo
	err := c.get(ctx, "/v1/version", &v)
	return v, err
}

func (c *Client) get(ctx context.Context, path string, answer any) error {
	return c.do(ctx, http.MethodGet, path, nil, answer)
}

func (c *Client) do(ctx context.Context, method, path string, send io.Reader, answer any) error {
	what := strings.ToLower(method) + " " + path
	// The host is a name for the Host header only.
	req, err := http.NewRequestWithContext(ctx, method, "http://vhostnet"+path, send)
	if err != nil {
		return fmt.Errorf("mgmt: %s: %w", what, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the made-up host
		}
		return fmt.Errorf("mgmt: %s from %s: %w", what, c.addr, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("mgmt: %s from %s: %w", what, c.addr, err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		var e ErrorInfo
		if json.Unmarshal(body, &e) != nil || e.Error == "" {
			e.Error = http.StatusText(resp.StatusCode)
		}
		return &StatusError{Status: resp.StatusCode, Message: e.Error}
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("mgmt: %s from %s: %w", what, c.addr, err)
	}
	return nil
}
