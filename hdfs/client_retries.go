package hdfs

import (
	"cmp"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
)

// Hadoop's properties that tell for how long calls of NameNodes are tried.
const (
	failoverAttempts = "dfs.client.failover.max.attempts"
	failoverPause    = "dfs.client.failover.sleep.base.millis"
	failoverMaxPause = "dfs.client.failover.sleep.max.millis"
	connectRetries   = "ipc.client.connect.max.retries"
	connectPause     = "ipc.client.connect.retry.interval"
	connectTimeouts  = "ipc.client.connect.max.retries.on.timeouts"
)

// takeFailover takes what is said of several NameNodes. All three properties make up the
// patience, as long as the pauses of HDFS's client are in all.
func takeFailover(c *ClientConfig, p *conf.Properties, _ string) error {
	attempts, counted, err := p.Number(failoverAttempts, 0)
	first, paused, errPause := p.Time(failoverPause, time.Millisecond)
	most, bounded, errMost := p.Time(failoverMaxPause, time.Millisecond)
	if err := cmp.Or(err, errPause, errMost); err != nil {
		return err
	}
	if len(c.NameNodes) < 2 || !counted && !paused && !bounded {
		return nil
	}
	if !counted {
		attempts = 15
	}
	if !paused {
		first = 500 * time.Millisecond
	}
	if !bounded {
		most = 15 * time.Second
	}
	if c.Patience == 0 {
		c.Patience = sumOfPauses(min(attempts, mostTries), min(first, longestPause), min(most, longestPause))
		fill(&c.Timeouts, count(attempts))
	}
	if paused || bounded {
		// Without any pause, calls would flood NameNodes that start.
		fill(&c.RetryPause, max(first, time.Millisecond))
		fill(&c.MaxRetryPause, max(most, time.Millisecond))
	}
	return nil
}

// sumOfPauses is how long HDFS's client pauses in all: before the first failover it does
// not, before the second for twice the first pause, and so on up to the longest.
func sumOfPauses(failovers int64, first, most time.Duration) time.Duration {
	pause, sum := first, time.Duration(1)
	for failovers--; failovers > 0 && pause < most; failovers-- {
		pause = min(2*pause, most)
		sum += pause
	}
	return sum + time.Duration(max(0, failovers))*most
}

// timeoutsOfOne is how many attempts may time out of a call of a sole NameNode beside the
// patience, as where neither is set.
const timeoutsOfOne = 9

// takeConnecting takes what is said of a sole NameNode.
func takeConnecting(c *ClientConfig, p *conf.Properties, _ string) error {
	retries, counted, err := p.Number(connectRetries, 0)
	pause, paused, errPause := p.Time(connectPause, time.Millisecond)
	timeouts, limited, errTimeouts := p.Number(connectTimeouts, 0)
	if err := cmp.Or(err, errPause, errTimeouts); err != nil || len(c.NameNodes) > 1 {
		return err
	}
	// The second of these properties finds the patience that the first has made up.
	switch own := c.Patience == 0; {
	case own && limited:
		fill(&c.Timeouts, count(timeouts))
	case own && (counted || paused):
		fill(&c.Timeouts, timeoutsOfOne)
	}
	if !counted && !paused {
		return nil
	}
	if !counted {
		retries = 10
	}
	if !paused {
		pause = time.Second
	}
	pause = max(pause, time.Millisecond)
	fill(&c.Patience, 1+time.Duration(min(retries, mostTries))*min(pause, longestPause))
	fill(&c.RetryPause, pause)
	fill(&c.MaxRetryPause, pause)
	return nil
}

// count is a number of which 0 means none, for a field of which 0 means the default.
func count(n int64) int {
	if n == 0 {
		return -1
	}
	return int(min(n, mostTries))
}
