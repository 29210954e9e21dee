package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// redisClients is redis-benchmark's number of connections, one request each at a
// time.
const redisClients = 50

// never is after how many seconds and changes redis saves.
const never = "1000000000"

// redis measures requests to a server in the guest.
func redis(command string) workload {
	name := "redis-" + command
	return workload{
		name: name, kind: kindRequests, direction: "both", quick: true,
		about: fmt.Sprintf("redis-benchmark -t %s with %d connections without pipelining, server in the guest", command, redisClients),
		prepare: func(ctx context.Context, b *bench) error {
			if err := b.guestServer(ctx, redisPort, "redis-server", "--port", strconv.Itoa(redisPort), "--bind", guestAddress,
				"--save", never, never, "--appendonly", "no", "--protected-mode", "no"); err != nil {
				return err
			}
			if b.speed[name] > 0 {
				return nil
			}
			// It counts requests and not seconds: find out how many there are in one.
			n := 500
			for range 2 {
				o, err := redisRun(ctx, b, command, n)
				if err != nil {
					return err
				}
				b.speed[name] = o.rate
				n = max(n, int(o.rate/2))
			}
			return nil
		},
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			key := name + " " + l.variant
			speed := b.speed[key]
			if speed == 0 {
				speed = b.speed[name]
			}
			// What is left over at the end only costs time.
			o, err := redisRun(ctx, b, command, int(speed*(l.seconds+0.3)))
			if err == nil {
				b.speed[key] = o.rate
			}
			return o, err
		},
	}
}

func redisRun(ctx context.Context, b *bench, command string, requests int) (outcome, error) {
	// Without a server it would try for ever.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := b.site.Host(ctx, "redis-benchmark", "-h", guestAddress, "-p", strconv.Itoa(redisPort), "-P", "1",
		"-c", strconv.Itoa(redisClients), "-n", strconv.Itoa(max(requests, redisClients)), "-t", command, "--csv")
	if err != nil {
		return outcome{}, err
	}
	rate, lat, err := parseRedis(out, command)
	return outcome{rate: rate, unit: "requests/s", latency: lat}, err
}

// parseRedis reads redis-benchmark --csv, whose times are in milliseconds.
func parseRedis(out, command string) (float64, *latency, error) {
	// Warnings come before the table.
	if i := strings.Index(out, `"test",`); i >= 0 {
		out = out[i:]
	}
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil || len(lines) < 2 {
		return 0, nil, unexpected("redis-benchmark", out)
	}
	for _, line := range lines[1:] {
		if !strings.EqualFold(line[0], command) {
			continue
		}
		values := map[string]float64{}
		for i, title := range lines[0][1:] {
			if values[title], err = number(line[i+1]); err != nil {
				return 0, nil, err
			}
		}
		const us = 1e3
		return values["rps"], &latency{
			Avg: values["avg_latency_ms"] * us, P50: values["p50_latency_ms"] * us, P99: values["p99_latency_ms"] * us,
		}, nil
	}
	return 0, nil, unexpected("redis-benchmark", out)
}

// httpConnections is wrk's number of connections.
const httpConnections = 16

// nginxConfig serves a small answer from memory; %[1]s is a folder.
const nginxConfig = `daemon off; master_process off; user root; pid %[1]s/pid; error_log stderr;
events { worker_connections 256; }
http {
  access_log off; keepalive_requests 1000000000;
  client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  server { listen %[2]s:%[3]d; location / { return 200 "0123456789abcdef"; } }
}`

// nginx measures small requests to a web server in the guest.
func nginx() workload {
	return workload{
		name: "nginx", kind: kindRequests, direction: "both", quick: true,
		about: fmt.Sprintf("wrk with %d connections, nginx in the guest answers with 16 bytes", httpConnections),
		prepare: func(ctx context.Context, b *bench) error {
			if b.running("guest", httpPort) {
				return nil
			}
			dir, err := b.site.Guest(ctx, "mktemp -d /tmp/nginx.XXXXXX")
			if err != nil {
				return err
			}
			dir = strings.TrimSpace(dir)
			b.atEnd(func(ctx context.Context) { _, _ = b.site.Guest(ctx, "rm -r "+dir) })
			_, err = b.site.Guest(ctx, "cat > "+dir+"/conf <<'END'\n"+fmt.Sprintf(nginxConfig, dir, guestAddress, httpPort)+"\nEND\n")
			if err != nil {
				return err
			}
			return b.guestServer(ctx, httpPort, "nginx", "-p", dir, "-e", "stderr", "-c", dir+"/conf")
		},
		run: func(ctx context.Context, b *bench, l load) (outcome, error) {
			out, err := b.site.Host(ctx, "wrk", "-t1", "-c"+strconv.Itoa(httpConnections),
				fmt.Sprintf("-d%ds", wholeSeconds(l.seconds)), "--latency", fmt.Sprintf("http://%s:%d/", guestAddress, httpPort))
			if err != nil {
				return outcome{}, err
			}
			rate, lat, err := parseWrk(out)
			return outcome{rate: rate, unit: "requests/s", latency: lat}, err
		},
	}
}

var (
	wrkRate    = regexp.MustCompile(`Requests/sec:\s+([\d.]+)`)
	wrkAvg     = regexp.MustCompile(`Latency\s+([\d.]+)(us|ms|s)`)
	wrkPercent = regexp.MustCompile(`(50|99)%\s+([\d.]+)(us|ms|s)`)
	wrkErrors  = regexp.MustCompile(`(?m)^\s*(Socket errors:.*|Non-2xx.*)$`)
)

// parseWrk reads wrk --latency.
func parseWrk(out string) (float64, *latency, error) {
	rate, avg := wrkRate.FindStringSubmatch(out), wrkAvg.FindStringSubmatch(out)
	if rate == nil || avg == nil {
		return 0, nil, unexpected("wrk", out)
	}
	if m := wrkErrors.FindStringSubmatch(out); m != nil {
		return 0, nil, fmt.Errorf("wrk: %s", m[1])
	}
	perSecond, err := number(rate[1])
	if err != nil {
		return 0, nil, err
	}
	l := &latency{}
	if l.Avg, err = microseconds(avg[1], avg[2]); err != nil {
		return 0, nil, err
	}
	for _, m := range wrkPercent.FindAllStringSubmatch(out, -1) {
		v, err := microseconds(m[2], m[3])
		if err != nil {
			return 0, nil, err
		}
		if m[1] == "50" {
			l.P50 = v
		} else {
			l.P99 = v
		}
	}
	return perSecond, l, nil
}

func microseconds(value, unit string) (float64, error) {
	v, err := number(value)
	return v * map[string]float64{"us": 1, "ms": 1e3, "s": 1e6}[unit], err
}
