package settings

import (
	"fmt"
	"math"
	"strconv"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// memorySettings are those of the runtime's memory.
var memorySettings = []providers.Setting{
	{Name: "memory.receive", Usage: "registered memory of each group on each device for what arrives, half of it for long messages; 8M up", Default: "1G, at most a quarter of what the process may use"},
	{Name: "memory.send", Usage: "the same for what is sent; 8M up", Default: "512M, at most an eighth of what the process may use"},
	{Name: "memory.ignore-pressure", Usage: "do not shrink when the machine or the cgroup is short of memory", Default: "false"},
}

// Memory lists the settings of the runtime's memory.
func Memory() []providers.Setting { return memorySettings }

// leastMemory is the least that a size may be, in bytes.
const leastMemory = 8 << 20

// setMemory sets one of them in a configuration.
func setMemory(cfg *verbena.Config, name, text string) (err error) {
	switch name {
	case "memory.receive":
		cfg.ReceiveMemory, err = parseSize(text)
	case "memory.send":
		cfg.SendMemory, err = parseSize(text)
	case "memory.ignore-pressure":
		if cfg.IgnorePressure, err = strconv.ParseBool(text); err != nil {
			err = fmt.Errorf("want true or false")
		}
	default:
		return unknown(name)
	}
	if err != nil {
		return fmt.Errorf("%s is %q: %w", name, text, err)
	}
	return nil
}

func parseSize(text string) (int64, error) {
	digits, shift := text, 0
	if n := len(text); n > 0 {
		switch text[n-1] {
		case 'K', 'k':
			shift = 10
		case 'M', 'm':
			shift = 20
		case 'G', 'g':
			shift = 30
		}
		if shift > 0 {
			digits = text[:n-1]
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift || n<<shift < leastMemory {
		return 0, fmt.Errorf("want bytes, such as 64M or 1G, at least %dM", leastMemory>>20)
	}
	return n << shift, nil
}

// Apply puts the tuning, the rules and the memory into a runtime's configuration. Load has
// checked them.
func (s Settings) Apply(cfg *verbena.Config) {
	cfg.Tuning, cfg.Rules = s.Tuning(), s.Rules()
	for _, each := range memorySettings {
		if v, ok := s[each.Name]; ok {
			_ = setMemory(cfg, each.Name, v.Text) // Load would have failed
		}
	}
}
