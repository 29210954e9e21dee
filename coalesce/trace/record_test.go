package trace_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/coalesce/trace"
)

// full is an observation in which every field is set.
func full(t *testing.T) coalesce.Observation {
	t.Helper()
	var o coalesce.Observation
	v := reflect.ValueOf(&o).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int64:
			f.SetInt(int64(100 + i))
		default:
			f.SetUint(uint64(100 + i))
		}
	}
	return o
}

// Nothing of an observation is lost on the way into a file and back: a field
// that is new in coalesce must be added to Record.
func TestRecordHoldsTheObservation(t *testing.T) {
	o := full(t)
	advice := coalesce.Advice{Limits: coalesce.Limits{Usecs: 3, Packets: 4}, Flush: true, Next: 77}
	r := trace.NewRecord(5, &o, coalesce.Decision{Reason: "rate", Limits: coalesce.Limits{Usecs: 9}}, advice)
	var out bytes.Buffer
	w := trace.NewWriter(&out, 1)
	w.Add(r)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	queues, err := trace.Read(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[int][]trace.Record{5: {r}}, queues); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(o, r.Observation()); d != "" {
		t.Error(d)
	}
	if r.Direction != "tx" || r.Tick || r.Limits != advice.Limits || r.Reason != "rate" || !r.Flush || r.Next != 77 {
		t.Errorf("%+v", r)
	}
	// The simulator's names, and coalesce's own for the rest.
	var fields, own map[string]any
	b, err := json.Marshal(o)
	if err := errors.Join(err, json.Unmarshal(out.Bytes(), &fields), json.Unmarshal(b, &own)); err != nil {
		t.Fatal(err)
	}
	own["t_ns"] = own["now"]
	delete(own, "now")
	for name, want := range own {
		if fields[name] != want {
			t.Errorf("%s is %v, want %v", name, fields[name], want)
		}
	}
}

func TestTickIsARecordWithoutAVirtqueue(t *testing.T) {
	r := trace.NewRecord(0, &coalesce.Observation{Now: 5}, coalesce.Decision{}, coalesce.Advice{})
	if !r.Tick || r.TNS != 5 || r.Direction != "rx" {
		t.Errorf("%+v", r)
	}
}

func TestReadErrors(t *testing.T) {
	const ok = `{"queue":0,"direction":"rx","t_ns":5,"limits":{"usecs":0,"packets":1},"reason":"start"}`
	for text, want := range map[string]string{
		"":                         "no records",
		"# nothing\n\n":            "no records",
		"1000,2,3000":              "line 1",
		`{"t_ns":1,"packets":2}`:   "want queue, t_ns and limits",
		ok + "\n" + ok[:len(ok)/2]: "line 2",
		ok + "\n\n" + at(ok, "4"):  "line 3: time goes back",
		strings.Replace(ok, `"queue":0`, `"queue":256`, 1):              "0 to 255",
		strings.Replace(ok, `"queue":0`, `"queue":-2`, 1):               "0 to 255",
		strings.Replace(ok, `"queue":0`, `"queue":1`, 1):                `want "tx"`,
		strings.Replace(ok, `"limits":{`, `"packets":-1,"limits":{`, 1): "line 1",
	} {
		if _, err := trace.Read(strings.NewReader(text)); !errors.Is(err, trace.ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	// Virtqueues do not share a worker, so they may be out of step.
	other := strings.NewReplacer(`"queue":0`, `"queue":1`, "rx", "tx").Replace(at(ok, "3"))
	if q, err := trace.Read(strings.NewReader("# recorded\n" + ok + "\n" + other)); err != nil || len(q) != 2 {
		t.Errorf("%v, %v", q, err)
	}
}

func at(line, ns string) string { return strings.Replace(line, `"t_ns":5`, `"t_ns":`+ns, 1) }

func FuzzRead(f *testing.F) {
	f.Add(`{"queue":0,"direction":"rx","t_ns":5,"packets":3,"size":256,"limits":{"usecs":0,"packets":1},"reason":"start"}`)
	f.Add(`{"queue":1,"direction":"tx","t_ns":-9223372036854775808,"limits":{},"next_ns":1}` + "\n" +
		`{"queue":1,"direction":"tx","t_ns":9223372036854775807,"packets":4294967295,"bytes":18446744073709551615,"limits":{},"tick":true}`)
	f.Add("# x\n\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		queues, err := trace.Read(strings.NewReader(text))
		if err != nil {
			if !errors.Is(err, trace.ErrTrace) {
				t.Error(err)
			}
			return
		}
		rs := queues[trace.Busiest(queues)]
		if len(rs) == 0 {
			t.Fatal("no records of the busiest virtqueue")
		}
		for _, name := range []string{"off", "fixed:8/8", "net-dim", "rdma-dim", "adaptive"} {
			s, err := coalesce.ParseEngine(name, coalesce.RX)
			if err != nil {
				t.Fatal(err)
			}
			r := trace.Replay(rs, s)
			total := 0.0
			for _, s := range r.Shares {
				total += s.Share
			}
			if r.Records != len(rs) || r.Agreement < 0 || r.Agreement > 1 || total < 0.999 || total > 1.001 {
				t.Errorf("%+v", r)
			}
		}
	})
}
