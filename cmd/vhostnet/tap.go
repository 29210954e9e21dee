package main

import (
	"errors"
	"fmt"
	"os/user"
	"strconv"

	"github.com/vhostnet/vhostnet/tap"
)

// tapCmd provisions TAP interfaces.
type tapCmd struct {
	Create tapCreateCmd `cmd:"" help:"Make a persistent TAP and set it up."`
	Delete tapDeleteCmd `cmd:"" help:"Remove a persistent TAP that nobody uses."`
}

// tapCreateCmd makes one.
type tapCreateCmd struct {
	Name   string `arg:"" help:"Interface name, 1 to 15 bytes."`
	Queues int    `default:"0" placeholder:"N" help:"Queues that it is to be used with, 1 to 256. The kernel knows two kinds only: 1 makes a single-queue TAP, more a multi_queue one that takes any number. Default multi_queue."`
	Owner  string `placeholder:"USER" help:"User, by name or number, who may attach to it without CAP_NET_ADMIN. Default none."`
	Group  string `placeholder:"GROUP" help:"Group, by name or number, whose members may attach to it without CAP_NET_ADMIN. Default none."`
	MTU    int    `name:"mtu" placeholder:"BYTES" help:"MTU, 68 to 65521 bytes. Default 1500."`
	Down   bool   `help:"Leave the link down."`
}

// Help is shown by --help.
func (*tapCreateCmd) Help() string {
	return `It needs CAP_NET_ADMIN. The interface stays until "vhostnet tap delete"; "vhostnet serve --port tap:NAME" attaches to it, as an ordinary user if it is the owner. Addresses and bridges are for ip(8).`
}

// Run makes the interface.
func (c *tapCreateCmd) Run(environment) error {
	if c.Queues < 0 || c.Queues > tap.MaxQueues {
		return usageError{fmt.Errorf("--queues %d: want 1 to %d", c.Queues, tap.MaxQueues)}
	}
	owner, err := lookup("user", c.Owner)
	if err != nil {
		return err
	}
	group, err := lookup("group", c.Group)
	if err != nil {
		return err
	}
	return tap.Create(c.Name, tap.CreateOptions{
		SingleQueue: c.Queues == 1, Owner: owner, Group: group, MTU: c.MTU, Down: c.Down,
	})
}

// lookup finds a user's or group's number; nil for "".
func lookup(what, name string) (*uint32, error) {
	if name == "" {
		return nil, nil
	}
	text := name
	if u, err := user.Lookup(name); what == "user" && err == nil {
		text = u.Uid
	} else if g, err := user.LookupGroup(name); what == "group" && err == nil {
		text = g.Gid
	}
	n, err := strconv.ParseUint(text, 10, 32)
	// The last number is the kernel's "unset".
	if err != nil || uint32(n) == ^uint32(0) {
		return nil, usageError{errors.New("--" + flagOf[what] + " " + name + ": there is no such " + what)}
	}
	id := uint32(n)
	return &id, nil
}

var flagOf = map[string]string{"user": "owner", "group": "group"}

// tapDeleteCmd removes one.
type tapDeleteCmd struct {
	Name string `arg:"" help:"Interface name."`
}

// Run removes the interface.
func (c *tapDeleteCmd) Run(environment) error { return tap.Delete(c.Name) }
