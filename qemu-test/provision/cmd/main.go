package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

func main() {
	cache := flag.String("cache", "", "cache folder (default $"+provision.EnvCache+", or .cache in the repository)")
	refresh := flag.Bool("refresh", false, "resolve all versions again")
	asJSON := flag.Bool("json", false, "print the paths as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	assets, err := provision.Ensure(ctx, provision.Options{
		Cache: *cache, Refresh: *refresh,
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if *asJSON {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		if err := out.Encode(assets); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fmt.Println(assets.Summary())
}
