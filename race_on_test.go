//go:build race

package verbena

const raceEnabled = true
