// Command vhostnet is a virtio network device that a virtual machine monitor
// attaches to over vhost-user.
//
// Its main subcommand, serve, is also the default one, so that the program
// follows QEMU's back-end program conventions (docs/interop/vhost-user.rst):
// --socket-path and --fd name the vhost-user socket, --print-capabilities
// describes the program, it stays in the foreground, and SIGTERM ends it.
//
// It exits with 0 after SIGTERM, SIGINT or the end of what it was to do, with 1
// when something failed, and with 2 when the command line is wrong. An error is
// one line on standard error that says what to do about it, where that is known.
package main
