package main

import (
	"io"

	"github.com/alecthomas/kong"
)

// cli is the command line.
type cli struct {
	Serve      serveCmd      `cmd:"" default:"withargs" help:"Serve network devices, each to one front-end at a time (the default command)."`
	Demo       demoCmd       `cmd:"" help:"Show notification coalescing with an embedded guest; needs no root, no VM."`
	Sim        simCmd        `cmd:"" help:"Compare moderation engines in a simulation; needs no root, no VM."`
	Device     deviceCmd     `cmd:"" help:"Add, remove and list the devices of a running process."`
	Moderation moderationCmd `cmd:"" help:"Change the moderation engines of a running device."`
	Tap        tapCmd        `cmd:"" help:"Make or remove persistent TAP interfaces."`
	Features   featuresCmd   `cmd:"" help:"Print the virtio features that a device offers."`
	Version    versionCmd    `cmd:"" help:"Print the version."`
}

const description = `A virtio-net device back-end over vhost-user that serves notification coalescing.

A virtual machine monitor (QEMU, User-Mode Linux, ...) connects to a Unix socket; the other side is a TAP interface.`

// options configure kong.
func options(stdout, stderr io.Writer) []kong.Option {
	return []kong.Option{
		kong.Name("vhostnet"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		// kong would call os.Exit; run recovers this.
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100, NoExpandSubcommands: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "socket", Title: "Where the front-end connects (one of --socket-path, --fd and --config):"},
			{Key: "device", Title: "The device:"},
			{Key: "moderation", Title: "Notification moderation:"},
			{Key: "threads", Title: "Threads:"},
			{Key: "watch", Title: "Watching it:"},
		}),
	}
}
