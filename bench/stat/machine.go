package stat

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine says on what the numbers were taken.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// ThisMachine describes the machine that runs the program.
func ThisMachine() Machine {
	return Machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Kernel: kernelRelease(), Go: runtime.Version()}
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// cpuModel returns the processor's name, which not every architecture has.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}
