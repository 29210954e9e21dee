package coalesce

// fixed is the engine that does not learn. "off" is it with the zero limits,
// with which the host has no policy and the driver's limits apply; "fixed" has
// other ones. The reason of its decision is its name.
type fixed struct {
	name   string
	limits Limits
}

func newFixed(name string, l Limits) Engine { return &fixed{name, l} }

func (f *fixed) Name() string                { return f.name }
func (f *fixed) Observe(*Observation) Advice { return Advice{Limits: f.limits} }
func (f *fixed) Tick(int64) Advice           { return Advice{Limits: f.limits} }
func (f *fixed) Reset()                      {}

func (f *fixed) Decision() Decision {
	return Decision{Limits: f.limits, Reason: f.name, Step: -1}
}
