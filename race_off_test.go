//go:build !race

package verbena

const raceEnabled = false
