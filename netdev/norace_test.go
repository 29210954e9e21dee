//go:build !race

package netdev_test

const raceEnabled = false
