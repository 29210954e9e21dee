package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/mdlayher/vsock"
)

// client is what the same binary does when a script starts it by another name.
func client(name string, args []string) error {
	switch name {
	case "vsock-get":
		return vsockGet(args)
	case "udp-sink":
		return udpSink(args)
	}
	return fmt.Errorf("guest: nothing to do under the name %q", name)
}

// udpSink takes datagrams and forgets them, so that nobody refuses them.
func udpSink(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: udp-sink PORT")
	}
	conn, err := net.ListenPacket("udp4", ":"+args[0])
	if err != nil {
		return fmt.Errorf("udp-sink: %w", err)
	}
	defer conn.Close()
	buffer := make([]byte, 64<<10)
	for {
		if _, _, err := conn.ReadFrom(buffer); err != nil {
			return fmt.Errorf("udp-sink: %w", err)
		}
	}
}

// vsockGet reads an HTTP resource over the loopback vsock (CID 1).
func vsockGet(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: vsock-get PORT PATH")
	}
	port, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return fmt.Errorf("vsock-get: port: %w", err)
	}
	client := http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return vsock.Dial(vsock.Local, uint32(port), nil)
			},
		},
	}
	response, err := client.Get("http://vhostnet" + args[1])
	if err != nil {
		return fmt.Errorf("vsock-get: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("vsock-get: %s", response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
