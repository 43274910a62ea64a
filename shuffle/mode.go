package shuffle

import (
	"fmt"
	"slices"

	"github.com/verbena-data/verbena"
)

// A Mode says how full blocks travel between processes.
type Mode uint8

// The modes.
const (
	// Auto puts blocks where a device or this process's processor does so, unless there are too many peers for it: see
	// Config.MostPuts. It sends them over TCP. [Stats] tells what it has chosen, and why.
	Auto Mode = iota
	// OneSided puts blocks into the receiving process's memory and notifies it.
	OneSided
	// TwoSided sends blocks as messages.
	TwoSided
)

var modeNames = [...]string{"auto", "one-sided", "two-sided"}

func (m Mode) String() string { return modeNames[min(m, TwoSided)] }

// MarshalText implements [encoding.TextMarshaler]: it is the name that String returns.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (m *Mode) UnmarshalText(text []byte) error {
	i := slices.Index(modeNames[:], string(text))
	if i < 0 {
		return fmt.Errorf("shuffle: no mode %q: auto, one-sided or two-sided", text)
	}
	*m = Mode(i)
	return nil
}

// defaultPuts is how many pieces of a host's memory an adapter may have to know so that Auto puts. Each is one that a process
// elsewhere writes to, and adapters keep few in their caches: that of Tsai and Zhang wrote slower from about a hundred on (LITE,
// SOSP 2017, section 2.4). No adapter was measured here.
const defaultPuts = 256

// A choice is a mode for a peer, and why.
type choice struct {
	Mode Mode
	Why  string
}

// choose chooses how blocks travel over a transport. It is the same for all peers that the transport reaches.
func (c *Config) choose(transport string) choice {
	if c.Mode != Auto {
		return choice{c.Mode, "Mode says so"}
	}
	switch transport {
	case verbena.TransportTCP:
		return choice{TwoSided, "a put is a message there"}
	case "shm":
		return choice{OneSided, "the sending thread copies; measured to be better at every scale"}
	case "iwarp":
		return choice{OneSided, "processors place the bytes; measured to be better at every scale"}
	}
	here := c.neighbours()
	pieces := here * (c.Size - here)
	if pieces > c.MostPuts {
		return choice{TwoSided, fmt.Sprintf("puts would need %d pieces of this host's memory at the adapter, MostPuts is %d", pieces, c.MostPuts)}
	}
	return choice{OneSided, fmt.Sprintf("the adapter places the bytes, in %d pieces of this host's memory, MostPuts is %d", pieces, c.MostPuts)}
}
