package queue

import "time"

const (
	decayEvery = 5 * time.Second
	// mostUsers bounds what is remembered; those beyond it come last.
	mostUsers = 10_000
)

// shares counts the calls of each user, of which half are forgotten every 5 s,
// as Hadoop's DecayRpcScheduler does.
type shares struct {
	users   map[string]float64
	total   float64
	decayed time.Time
}

// level counts a call and returns its level: the last one for a user with half
// of all calls, the third for one with a quarter, the second for one with an
// eighth, the first for the rest.
func (s *shares) level(user string, now time.Time) int {
	if passed := now.Sub(s.decayed); passed >= decayEvery {
		s.decay(int(min(passed/decayEvery, 64)))
		s.decayed = now
	}
	n, known := s.users[user]
	if !known && len(s.users) >= mostUsers {
		return Levels - 1
	}
	n++
	s.total++
	s.users[user] = n
	switch {
	case n*2 >= s.total:
		return 3
	case n*4 >= s.total:
		return 2
	case n*8 >= s.total:
		return 1
	}
	return 0
}

func (s *shares) decay(times int) {
	s.total = 0
	for user, n := range s.users {
		for range times {
			n /= 2
		}
		if n < 0.5 {
			delete(s.users, user)
			continue
		}
		s.users[user] = n
		s.total += n
	}
}
