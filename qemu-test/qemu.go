package qemutest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// startQEMU starts one of QEMU's lanes with the console on standard output, the
// control line as second serial line and a monitor on inherited sockets.
func (g *Guest) startQEMU(ctx context.Context, initrd string, control *os.File) error {
	c := g.config
	qemu := c.Assets.QEMU
	if c.Lane == LaneOldNetdev {
		qemu = c.Assets.OldQEMU
	}
	monitorOurs, monitorTheirs, err := socketPair("QEMU monitor")
	if err != nil {
		return err
	}
	defer monitorTheirs.Close()
	g.files = append(g.files, monitorOurs)

	memory := fmt.Sprintf("%dM", c.MemoryMB)
	args := []string{
		"-accel", accelerator(), "-cpu", "max", "-smp", strconv.Itoa(c.CPUs), "-m", memory,
		// The backend maps the guest's memory, so it is a file that can be passed on.
		"-machine", "q35,memory-backend=mem",
		"-object", "memory-backend-memfd,id=mem,share=on,size=" + memory,
		"-display", "none", "-nodefaults", "-no-user-config",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "socket,id=control,fd=3", "-serial", "chardev:control",
		"-chardev", "socket,id=monitor,fd=4", "-mon", "chardev=monitor,mode=control",
		"-kernel", c.Assets.Kernel, "-initrd", initrd,
		"-append", strings.Join(append(kernelArguments(c, "ttyS1"),
			// What costs boot time under an emulated CPU and changes nothing here.
			"console=ttyS0", "nokaslr", "mitigations=off", "no_timer_check", "tsc=reliable", "audit=0", "apparmor=0"), " "),
	}
	extra := []*os.File{control, monitorTheirs}
	if c.Lane == LaneTAP {
		if c.TAP == nil {
			return errors.New("qemutest: a guest on a TAP without a TAP")
		}
		args = append(args, "-netdev", fmt.Sprintf("tap,id=n0,vhost=off,fd=%d", stdFiles+len(extra)), "-device", "virtio-net-pci,netdev=n0,romfile=")
		extra = append(extra, c.TAP)
	} else if c.Socket != "" {
		device, err := qemuDevice(c, qemu.ReconnectMS)
		if err != nil {
			return err
		}
		args = append(args, device...)
	}
	// The guest lives until Close, not as long as the call that started it.
	cmd := qemu.Command(context.WithoutCancel(ctx), args...)
	cmd.Dir = c.Dir
	cmd.ExtraFiles = extra
	cmd.Stdout, cmd.Stderr = g.Console, g.Stderr
	if g.process, err = start("QEMU", cmd, nil); err != nil {
		return err
	}
	g.monitor = newMonitor(monitorOurs)
	return nil
}

// stdFiles is how many descriptors a program has before those of ExtraFiles.
const stdFiles = 3

// qemuDevice is the network device of a lane.
func qemuDevice(c Config, milliseconds bool) ([]string, error) {
	chardev := "socket,id=net,path=" + strings.ReplaceAll(c.Socket, ",", ",,")
	if c.Lane == LaneTestDevice {
		if c.ReconnectMS != 0 {
			// It would open the channel in the background and then find it closed.
			return nil, fmt.Errorf("qemutest: the generic device cannot reconnect")
		}
		return []string{
			"-chardev", chardev,
			"-device", fmt.Sprintf("vhost-user-test-device-pci,chardev=net,virtio-id=1,num_vqs=%d,vq_size=256,config_size=24",
				2*c.QueuePairs+1),
		}, nil
	}
	if c.ReconnectMS > 0 {
		if milliseconds {
			chardev += fmt.Sprintf(",reconnect-ms=%d", c.ReconnectMS)
		} else {
			chardev += fmt.Sprintf(",reconnect=%d", max(1, (c.ReconnectMS+999)/1000))
		}
	}
	vectors := 2*c.QueuePairs + 2
	if c.Lane == LaneOldNetdev {
		// Without KVM it crashes when the guest masks an MSI-X vector of a vhost-user
		// device.
		vectors = 0
	}
	device := fmt.Sprintf("virtio-net-pci,netdev=n0,mq=on,vectors=%d,romfile=", vectors)
	if c.Packed {
		device += ",packed=on"
	}
	return []string{
		"-chardev", chardev,
		"-netdev", fmt.Sprintf("vhost-user,id=n0,chardev=net,queues=%d", c.QueuePairs),
		"-device", device,
	}, nil
}

// accelerator is what QEMU runs guests with: $VHOSTNET_ACCEL, or tcg, which
// works everywhere.
func accelerator() string {
	if a := os.Getenv("VHOSTNET_ACCEL"); a != "" {
		return a
	}
	return "tcg"
}
