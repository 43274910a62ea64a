package link

// answers are the receives for what the peer sends without a credit because of what
// this side has sent: a confirmation of each open offer, and credit messages.
//
// As long as this side uses credits one by one, and has not had to wait for one, one
// credit message at most comes back for each. So an end that is idle need not have
// them all: the caller is asked for more when what is to be sent needs them.
type answers struct {
	asleep  int  // that are not there yet
	ready   int  // that are
	lacking int  // of them, what the last message that had to wait needs more
	crowded bool // this side has sent before it had all its credits back, or after a wait
}

func newAnswers(l Limits) answers {
	return answers{asleep: l.AllAnswers() - l.Answers, ready: l.Answers}
}

// answered tells whether there are receives for the answers to the next message of
// this side, which makes so many open offers.
func (m *Machine[M]) answered(offers int) bool {
	a := &m.answers
	if a.asleep == 0 {
		return true
	}
	a.lacking = max(m.controls()+offers-a.ready, 0)
	return a.lacking == 0
}

// controls is how many credit messages may come at a time, for what this side has sent.
func (a *answers) controls() int {
	if a.crowded || a.asleep == 0 {
		return ControlReceives
	}
	return 1
}

// controls is how many credit messages may come at a time once the next message of
// this side is sent.
func (m *Machine[M]) controls() int {
	if m.answers.crowded || m.credits.starved || m.credits.left != int(m.peer.Window) {
		return ControlReceives
	}
	return 1
}

// Lacks is how many receives more must be ready for answers before MaySend or
// MayOffer, which has just reported false, can report true. The caller posts them and
// calls [Machine.Expect]. It is 0 if that is not what is missing.
func (m *Machine[M]) Lacks() int { return m.answers.lacking }

// Expect says that n receives more are ready for answers.
func (m *Machine[M]) Expect(n int) {
	a := &m.answers
	a.ready += n
	a.asleep -= n
	a.lacking = max(a.lacking-n, 0)
}
