// Command guest is the init of the test guests. As process 1 it mounts the
// kernel's file systems, loads modules, brings the network up and then either
// runs the script of the initramfs and powers off, or serves commands over a
// serial line of its own until it is told to stop.
//
// It takes its parameters from the kernel's command line:
//
//	vhostnet.modules=a,b    modules to load (default virtio_net)
//	vhostnet.address=A/N    IPv4 address of eth0
//	vhostnet.control=DEV    serial line for commands, for example ttyS1
//
// What it prints itself starts with "vhostnet-guest: ".
package main
