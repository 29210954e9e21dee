package qemutest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// TestStatusOverVsock serves the status API on AF_VSOCK inside a guest and reads
// it there over the loopback transport: nothing of the host is involved.
func TestStatusOverVsock(t *testing.T) {
	ctx := limit(t, time.Minute)
	binary, err := backendBinary()
	if err != nil {
		t.Fatal(err)
	}
	g := boot(t, ctx, Config{
		Lane:    LaneUML,
		Modules: []string{"vsock", "vsock_loopback"},
		Files:   []provision.File{{Name: "bin/vhostnet", From: binary}},
	})
	must(t, ctx, g, `
		vhostnet serve --socket-path /tmp/s --port null --api vsock:1024 >/tmp/log 2>&1 & echo $! > /tmp/pid
		for i in $(seq 50); do vsock-get 1024 /v1/devices > /tmp/answer 2>/tmp/error && exit 0; sleep 0.1; done
		cat /tmp/error /tmp/log; exit 1`)
	var list mgmt.DeviceList
	if err := json.Unmarshal([]byte(must(t, ctx, g, "cat /tmp/answer")), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Devices) != 1 || list.Devices[0].PortKind != "null" || list.Devices[0].FrontEnd.Connected {
		t.Errorf("the API shows %+v", list.Devices)
	}
	must(t, ctx, g, "kill $(cat /tmp/pid); for i in $(seq 20); do [ -d /proc/$(cat /tmp/pid) ] && sleep 0.1; done; ! vsock-get 1024 /v1/devices")
}
