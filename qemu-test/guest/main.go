package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// scriptPath is the script that a test may put into the initramfs.
const scriptPath = "/etc/vhostnet/script"

func main() {
	if os.Getpid() != 1 {
		if err := client(filepath.Base(os.Args[0]), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	how := unix.LINUX_REBOOT_CMD_POWER_OFF
	restart, err := run()
	if err != nil {
		say("failed: %v", err)
	}
	if restart {
		how = unix.LINUX_REBOOT_CMD_RESTART
	}
	say("power off")
	unix.Sync()
	if err := unix.Reboot(how); err != nil {
		say("reboot: %v", err)
	}
	select {} // process 1 must not end
}

// say prints a marker line on the console.
func say(format string, args ...any) {
	fmt.Printf("vhostnet-guest: "+format+"\n", args...)
}

// run is everything between the kernel's start and the power-off.
func run() (restart bool, err error) {
	if err := prepare(); err != nil {
		return false, err
	}
	options := kernelOptions()
	modules := "virtio_net"
	if v, ok := options["modules"]; ok {
		modules = v
	}
	for name := range strings.SplitSeq(modules, ",") {
		if name == "" {
			continue
		}
		if out, err := exec.Command("modprobe", name).CombinedOutput(); err != nil {
			say("module %s: %v: %s", name, err, strings.TrimSpace(string(out)))
			continue
		}
		say("module %s loaded", name)
	}
	if err := network(options["address"]); err != nil {
		say("network: %v", err)
	}
	if _, err := os.Stat(scriptPath); err == nil {
		return false, runScript()
	}
	if options["control"] == "" {
		return false, errors.New("neither a script nor a control line")
	}
	return serve("/dev/" + options["control"])
}

// prepare mounts what programs expect.
func prepare() error {
	for _, m := range []struct{ source, target, kind string }{
		{"proc", "/proc", "proc"},
		{"sysfs", "/sys", "sysfs"},
		{"devtmpfs", "/dev", "devtmpfs"},
		{"tmpfs", "/tmp", "tmpfs"},
		{"tmpfs", "/run", "tmpfs"},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	// The kernel may have started init without an open console, before /dev was
	// there.
	if console, err := os.OpenFile("/dev/console", os.O_RDWR|unix.O_NOCTTY, 0); err == nil {
		for fd := range 3 {
			if err := unix.Dup3(int(console.Fd()), fd, 0); err != nil {
				return fmt.Errorf("console: %w", err)
			}
		}
	}
	for k, v := range map[string]string{"PATH": "/bin:/sbin:/usr/bin", "HOME": "/root", "TERM": "dumb"} {
		if err := os.Setenv(k, v); err != nil {
			return err
		}
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	say("init on Linux %s", unix.ByteSliceToString(u.Release[:]))
	return nil
}

// kernelOptions are the vhostnet.* parameters of the kernel's command line.
func kernelOptions() map[string]string {
	options := map[string]string{}
	raw, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return options
	}
	for word := range strings.FieldsSeq(string(raw)) {
		if rest, ok := strings.CutPrefix(word, "vhostnet."); ok {
			name, value, _ := strings.Cut(rest, "=")
			options[name] = value
		}
	}
	return options
}

// network brings the interfaces up.
func network(address string) error {
	// Router solicitations would add packets that no test asked for.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	commands := [][]string{{"link", "set", "lo", "up"}}
	if _, err := os.Stat("/sys/class/net/eth0"); err == nil {
		if address != "" {
			commands = append(commands, []string{"addr", "add", address, "dev", "eth0"})
		}
		commands = append(commands, []string{"link", "set", "eth0", "up"})
	} else {
		say("no eth0")
	}
	for _, args := range commands {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
		}
	}
	say("network up")
	return nil
}

// runScript runs the script of the initramfs with its output on the console.
func runScript() error {
	say("script starts")
	cmd := exec.Command("sh", "-c", prelude+". "+scriptPath)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		say("script exit %d", exit.ExitCode())
		return nil
	}
	if err != nil {
		return fmt.Errorf("script: %w", err)
	}
	say("script exit 0")
	return nil
}
