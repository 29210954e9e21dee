package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"

	"github.com/pelletier/go-toml/v2"

	"github.com/vhostnet/vhostnet/fleet"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
)

// deviceTable describes a device in a file and in the API, as the flags of serve do
// on the command line.
type deviceTable struct {
	SocketPath string `toml:"socket-path" json:"socket-path,omitzero"`
	FD         *int   `toml:"fd" json:"fd,omitzero"`
	Client     bool   `toml:"client" json:"client,omitzero"`
	deviceFlags
}

// maxConfig bounds the file of --config: a table has some hundred bytes.
const maxConfig = 16 << 20

// readConfig reads the tables of a file. Errors begin with the file's name, and
// with line and column where a key or its type is wrong.
func readConfig(path string) ([]deviceTable, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(b) > maxConfig {
		err = fmt.Errorf("has more than %d bytes", maxConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--config %s: %w", path, err)
	}
	tables, err := parseConfig(b)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", path, err)
	}
	return tables, nil
}

// parseConfig reads a file's text. Errors begin with a position, or with a space.
func parseConfig(b []byte) ([]deviceTable, error) {
	var file struct {
		Device []deviceTable `toml:"device"`
	}
	d := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		var unknown *toml.StrictMissingError
		if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
			e := &unknown.Errors[0]
			row, column := e.Position()
			return nil, fmt.Errorf("%d:%d: unknown key %q", row, column, join(e.Key()))
		}
		var e *toml.DecodeError
		if errors.As(err, &e) {
			row, column := e.Position()
			return nil, fmt.Errorf("%d:%d: %w", row, column, e)
		}
		return nil, fmt.Errorf(" %w", err)
	}
	// What a table has for itself must not be another's.
	owner := map[any]deviceName{}
	type key struct{ key, value string }
	for i := range file.Device {
		t := &file.Device[i]
		if t.Name == "" {
			return nil, fmt.Errorf(" device %d has no name", i+1)
		}
		if err := t.check(); err != nil {
			return nil, fmt.Errorf(" %w", err)
		}
		own := []key{{"name", string(t.Name)}, {"socket-path", t.SocketPath}, {"trace", t.Trace}}
		for _, fd := range t.descriptors() {
			own = append(own, key{"fd", fmt.Sprint(fd)})
		}
		for _, k := range own {
			if other, taken := owner[k]; taken {
				return nil, fmt.Errorf(" device %q: %s %s is that of device %q", t.Name, k.key, k.value, other)
			}
			if k.value != "" {
				owner[k] = t.Name
			}
		}
	}
	return file.Device, nil
}

func join(k toml.Key) string {
	var b bytes.Buffer
	for i, part := range k {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(part)
	}
	return b.String()
}

// flagMark is how messages mark the names of flags, which a table's keys have not.
var flagMark = regexp.MustCompile(`(^| )--([a-z])`)

// check finds what is wrong with a table without opening anything.
func (t *deviceTable) check() error {
	name := t.Name
	err := name.UnmarshalText([]byte(t.Name)) // the TOML library takes it for any text
	if err == nil {
		_, err = endpoint(t.SocketPath, t.FD, t.Client)
	}
	if err == nil {
		err = t.deviceFlags.check()
	}
	if err != nil {
		return fmt.Errorf("device %q: %s", t.Name, flagMark.ReplaceAllString(err.Error(), "$1$2"))
	}
	return nil
}

// descriptors are those that the device is handed.
func (t *deviceTable) descriptors() []int {
	fds := tapDescriptors(t.Port)
	if t.FD != nil {
		fds = append(fds, *t.FD)
	}
	return fds
}

// parseObject reads what is posted to the API. Errors wrap mgmt.ErrValue.
func parseObject(b []byte) (t deviceTable, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err = d.Decode(&t); err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the object")
		}
	}
	switch {
	case err != nil:
	case t.Name == "":
		err = errors.New("the device has no name")
	case len(t.descriptors()) > 0:
		// Its number would be that of whatever the process has open.
		err = errors.New("fd and tap-fd: a descriptor cannot be handed down over the API")
	default:
		err = t.check()
	}
	if err != nil {
		return deviceTable{}, fmt.Errorf("%w: %w", mgmt.ErrValue, err)
	}
	return t, nil
}

// definition is what a fleet needs of a table that was checked.
func (t deviceTable) definition(log *slog.Logger, pool *netdev.Pool) fleet.Definition {
	port := t.Port
	if port == "" {
		port = "null"
	}
	return fleet.Definition{
		Name: string(t.Name), Port: port, Config: t, Once: len(t.descriptors()) > 0,
		Open: func() (fleet.Device, error) {
			end, err := endpoint(t.SocketPath, t.FD, t.Client)
			if err != nil {
				return nil, err
			}
			s, err := openServed(log, pool, end, &t.deviceFlags)
			if err != nil {
				return nil, err // and not an interface that holds a nil
			}
			return s, nil
		},
	}
}
