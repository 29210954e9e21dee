//go:build race

package netdev_test

const raceEnabled = true
