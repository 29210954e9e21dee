package main

import (
	"encoding/json"
	"io"
)

// printCapabilities is the option of QEMU's back-end program conventions that
// makes a program describe itself.
const printCapabilities = "--print-capabilities"

// writeCapabilities writes a VHostUserBackendCapabilities object
// (docs/interop/vhost-user.json). The schema defines features for some types of
// device and none for "net", so the list is empty.
func writeCapabilities(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Type     string   `json:"type"`
		Features []string `json:"features"`
	}{"net", []string{}})
}
