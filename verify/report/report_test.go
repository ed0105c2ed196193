package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

func sample() *Report {
	return &Report{
		Command: "projection", Tool: Tool{"verify", "0"}, Repeat: "verify projection --basis q.npy", Exit: 1,
		Inputs: []Input{{Role: "basis", Path: "q\x1b[31m.npy", Size: 1234, What: "(3, 2) float32"}},
		Results: []check.Result{
			{Check: "a/pass", Subject: "q", Verdict: check.Pass, Metric: "max", Measured: 1, Limit: 2, Compared: 3},
			{Check: "a/fail", Subject: "name\x1b]0;x\x07", Verdict: check.Fail, Metric: "max", Measured: math.NaN(), Limit: 1e-5, Compared: 3, Where: "row 1\n",
				Explanations: []check.Explanation{{Fault: "H2", Title: "no-op", Evidence: "same bits"}, {Title: "or not", Lead: true}}, Facts: []check.Fact{{Name: "σ", Value: math.Inf(1)}}, Fix: "mend"},
			{Check: "a/fail", Subject: "other", Verdict: check.Fail, Metric: "max", Measured: 3, Limit: 1, Compared: 1},
			{Check: "a/open", Verdict: check.Undetermined, Reason: "no input"},
			{Check: "a/skip", Verdict: check.Skip, Reason: "not here"},
			{Check: "a/warn", Verdict: check.Warn, Reason: "careful"},
		},
		Lines: []string{"Gradient flow: min=0.000000"},
		Files: []string{"p.svg"},
	}
}

func write(t *testing.T, r *Report, opt Options) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Write(&b, opt))
	return b.String()
}

func TestHuman(t *testing.T) {
	text := write(t, sample(), Options{Format: "human"})
	require.NotContains(t, text, "\x1b", "a file's name must not drive the terminal")
	require.NotContains(t, text, "\x07")
	for _, want := range []string{"a/pass", "1e-05", "H2: no-op (same bits)", "[a lead, not proven]", "fix          mend",
		"repeat       verify projection --basis q.npy --select a/fail", "written: p.svg", "exit 1: a check failed", "(+1)",
		"1 PASS, 2 FAIL, 1 UNDETERMINED, 1 WARN, 1 SKIP"} {
		require.Contains(t, text, want)
	}
	order := []string{"where ", "explanation ", "numbers ", "fix ", "repeat "}
	at := 0
	for _, field := range order {
		i := strings.Index(text[at:], field)
		require.GreaterOrEqual(t, i, 0, "%s out of order", field)
		at += i
	}
	require.Contains(t, write(t, sample(), Options{Format: "human", Color: true}), "\x1b[31;1mFAIL")
	require.NotContains(t, write(t, sample(), Options{Format: "human", Quiet: true}), "a/pass")
	require.Contains(t, write(t, sample(), Options{Format: "human", Verbose: true}), "other")

	many := sample()
	many.Lines = make([]string, 50)
	require.Contains(t, write(t, many, Options{Format: "human"}), "30 more lines (-v)")
	require.Error(t, sample().Write(&bytes.Buffer{}, Options{Format: "yaml"}))
}

// Of explanations that give the same numbers the first few are printed, of long sections how long they are, and what could not
// be seen has one line for each reason.
func TestHumanDumps(t *testing.T) {
	r := &Report{Command: "dump", Exit: 1, Repeat: "verify dump run",
		Results: []check.Result{
			{Check: "a/fail", Verdict: check.Fail, Formula: "Σx", Reason: "3 of 4", Metric: "|Δ|", Measured: 0.5, Limit: 0x1p-150, Repeat: "--select a/fail --steps 1,7", Details: []string{"not tried: b"},
				Explanations: []check.Explanation{
					{Fault: "ONE", Title: "first", Evidence: "all", Cause: "because", Rows: []string{"P001"}, Apart: 100, Options: []check.OptionChange{{Option: "o", Value: "1", Declared: "0", Origin: "p"}}},
					{Fault: "TWO", Title: "second"}, {Fault: "THREE", Title: "third"}, {Fault: "FOUR", Title: "fourth"},
				}, Class: []string{"ONE", "TWO", "THREE", "FOUR"}, Steps: &check.Steps{Judged: 9, Bad: 2, First: 0}},
			{Check: "a/none", Verdict: check.Pass, Steps: &check.Steps{Judged: 9}},
			{Check: "b/x", Verdict: check.NotSeen, Reason: "without y"}, {Check: "b/z", Verdict: check.NotSeen, Reason: "without y"}, {Check: "b/q", Verdict: check.NotSeen, Reason: "without r"},
		},
		Lists: []Section{{Title: "few", Items: []string{"f1"}}, {Title: "many", Items: strings.Split("m1 m2 m3 m4 m5 m6", " ")}, {Title: "found", Items: strings.Split("w1 w2 w3 w4 w5 w6", " "), Whole: true}},
	}
	for range 20 {
		r.Inputs = append(r.Inputs, Input{Role: "step", Path: "some.safetensors"})
	}
	text := write(t, r, Options{Format: "human"})
	for _, want := range []string{"formula      Σx\n      finding      3 of 4\n", "|Δ| = 0.5, want exactly 0\n", "explanation  ONE: first (all)\n        or         TWO: second\n        or         THREE: third\n        tied       so do on these data: FOUR (-v)\n",
		"repeat       verify dump run --select a/fail --steps 1,7\n", "not seen  b/x, b/z: without y\nnot seen  b/q: without r\n", "few:\n  f1\n", "many: 6 (-v lists them)\n", "found:\n  w1\n", "… and 16 more files (-v)\n"} {
		require.Contains(t, text, want)
	}
	for _, hidden := range []string{"fourth", "because", "P001", "m1", "not tried", "e-46"} {
		require.NotContains(t, text, hidden)
	}
	loud := write(t, r, Options{Format: "human", Verbose: true})
	for _, want := range []string{"FOUR: fourth", "cause      because", "catalogue  P001", "  m6\n", "detail       not tried: b", "these give the same numbers on these data"} {
		require.Contains(t, loud, want)
	}
	quiet := write(t, r, Options{Format: "human", Quiet: true})
	require.NotContains(t, quiet, "f1")
	require.NotContains(t, write(t, &Report{Results: []check.Result{{Check: "a", Verdict: check.Fail, Explanations: r.Results[0].Explanations}}}, Options{Format: "human"}), "tied", "explanations without a class are not said to be tied")

	var got struct {
		Lists   []map[string]any
		Results []struct {
			Class, Details []string
			Formula        string
			Steps          map[string]any
			Explanations   []map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(write(t, r, Options{Format: "json"})), &got))
	require.Len(t, got.Lists, 3)
	require.Equal(t, map[string]any{"judged": 9.0, "bad": 2.0, "first_bad": 0.0}, got.Results[0].Steps, "step 0 is a step")
	require.Equal(t, map[string]any{"judged": 9.0, "bad": 0.0}, got.Results[1].Steps)
	require.Equal(t, r.Results[0].Class, got.Results[0].Class)
	require.Equal(t, "Σx", got.Results[0].Formula)
	require.Equal(t, []any{map[string]any{"option": "o", "value": "1", "declared": "0", "origin": "p"}}, got.Results[0].Explanations[0]["options"])
	require.Equal(t, 100.0, got.Results[0].Explanations[0]["apart"])
	require.NotContains(t, got.Results[0].Explanations[1], "options")
}

func TestJSONNumbers(t *testing.T) {
	text := write(t, sample(), Options{Format: "json"})
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	fail := got["results"].([]any)[1].(map[string]any)
	require.Equal(t, "NaN", fail["measured"])
	require.Equal(t, 1e-5, fail["limit"])
	require.Equal(t, "Infinity", fail["facts"].([]any)[0].(map[string]any)["value"])
	skip := got["results"].([]any)[4].(map[string]any)
	require.NotContains(t, skip, "measured", "nothing was measured")
	require.Equal(t, float64(2), got["counts"].(map[string]any)["FAIL"])

	for v, want := range map[float64]string{0.1: "0.1", 1e-300: "1e-300", 1 << 53: "9.007199254740992e+15", math.Inf(-1): `"-Infinity"`, 0: "0"} {
		b, err := Number(v).MarshalJSON()
		require.NoError(t, err)
		require.Equal(t, want, string(b))
	}
	empty := write(t, &Report{Command: "x"}, Options{Format: "json"})
	for _, list := range []string{`"inputs": []`, `"results": []`, `"lines": []`, `"files": []`} {
		require.Contains(t, empty, list, "an empty list is a list, not null")
	}
}

// What a terminal obeys stands escaped in every form, and reads back as it was.
func TestFormsDriveNoTerminal(t *testing.T) {
	const strange = "a\u202eb\u009b31m\u2028c\u007f\u2066"
	for _, form := range []string{"json", "junit"} {
		r := sample()
		r.Err = strange
		text := write(t, r, Options{Format: form})
		require.NotContains(t, text, strange)
		require.False(t, strings.ContainsFunc(text, func(c rune) bool {
			return c != '\n' && c != '\t' && unicode.In(c, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
		}), "%q", text)
		switch form {
		case "json":
			var got struct{ Error string }
			require.NoError(t, json.Unmarshal([]byte(text), &got))
			require.Equal(t, strange, got.Error)
		case "junit":
			var got struct {
				Errors []struct {
					Message string `xml:"message,attr"`
				} `xml:"testsuite>testcase>error"`
			}
			require.NoError(t, xml.Unmarshal([]byte(text), &got))
			require.Equal(t, strange, got.Errors[len(got.Errors)-1].Message)
		}
	}
}

func TestJUnit(t *testing.T) {
	r := sample()
	r.Err = "cut\x00 short"
	text := write(t, r, Options{Format: "junit"})
	var doc struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Errors   int `xml:"errors,attr"`
		Skipped  int `xml:"skipped,attr"`
		Suite    struct {
			Cases []struct {
				Name    string `xml:"name,attr"`
				Failure *struct {
					Text string `xml:",chardata"`
				} `xml:"failure"`
				Error *struct {
					Message string `xml:"message,attr"`
				} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	require.NoError(t, xml.Unmarshal([]byte(text), &doc))
	require.Equal(t, []int{7, 2, 2, 1}, []int{doc.Tests, doc.Failures, doc.Errors, doc.Skipped})
	require.Contains(t, doc.Suite.Cases[1].Failure.Text, "NaN", "the numbers stand in the text")
	require.Equal(t, "no input", doc.Suite.Cases[3].Error.Message, "undetermined is an error, not a skip")
	require.Equal(t, "cut short", doc.Suite.Cases[6].Error.Message)
	require.NotContains(t, text, "\x1b")
}

func TestChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "old.json")
	old := sample()
	require.NoError(t, os.WriteFile(path, []byte(write(t, old, Options{Format: "json"})), 0o666))
	lines, err := Changes(path, sample())
	require.NoError(t, err)
	require.Equal(t, []string{"since baseline: nothing changed"}, lines)

	now := sample()
	now.Results[0].Verdict = check.Fail
	now.Results[5].Check = "a/new"
	lines, err = Changes(path, now)
	require.NoError(t, err)
	require.Equal(t, []string{"since baseline: a/pass q was PASS, is FAIL", "since baseline: a/new  is new: WARN", "since baseline: a/warn  was WARN, is gone"}, lines)

	for _, bad := range []string{"", "[", `{"schema_version": 99, "results": []}`} {
		require.NoError(t, os.WriteFile(path, []byte(bad), 0o666))
		_, err = Changes(path, now)
		require.True(t, format.IsMalformed(err), "%q: %v", bad, err)
	}
	_, err = Changes(path+".none", now)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestBars(t *testing.T) {
	b := &Bars{Title: "Projection Components", XLabel: "Basis Vector Index", YLabel: "Absolute Projection Magnitude", Limit: 1e-5, LimitName: "tolerance",
		Series: []Series{{"before", []float64{0.1, 0, math.Inf(1)}}, {"after", []float64{1e-8, math.NaN(), 0}}}}
	var buf bytes.Buffer
	require.NoError(t, b.Write(&buf, "p.png"))
	img, err := png.Decode(&buf)
	require.NoError(t, err)
	require.Equal(t, 1000, img.Bounds().Dx())
	require.Equal(t, 500, img.Bounds().Dy())

	for _, n := range []int{0, 1, 7, 100, 3000} {
		many := *b
		many.Series = []Series{{"|Qᵀv|", make([]float64, n)}}
		buf.Reset()
		require.NoError(t, many.Write(&buf, "p.svg"))
		require.NoError(t, xml.Unmarshal(buf.Bytes(), new(struct{})))
		require.LessOrEqual(t, len(indexTicks(n)), 17)
	}
	hostile := *b
	hostile.Title = `<script>alert(1)</script>`
	buf.Reset()
	require.NoError(t, hostile.Write(&buf, "p.html"))
	require.NotContains(t, buf.String(), "<script>")
	require.Error(t, b.Write(&buf, "p.gif"))
}

// The line of a picture is the worst check with its number, its limit and the bug that explains it, and the counts where nothing is wrong.
func TestVerdictOfAReport(t *testing.T) {
	r := sample()
	require.Equal(t, "FAIL a/fail: NaN, limit 1e-05: H2", r.Verdict())
	r.Results[1].Explanations = r.Results[1].Explanations[:1]
	require.Equal(t, "FAIL a/fail: NaN, limit 1e-05: H2", r.Verdict())
	r.Results[1].Explanations = nil
	require.Equal(t, "FAIL a/fail: NaN, limit 1e-05", r.Verdict())
	r.Results = r.Results[:1]
	require.Equal(t, "1 PASS", r.Verdict())
}

// A matrix counts what was caught, and what was named first by the fault that was planted.
func TestMatrix(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Matrix(&b, []Kill{{Check: "a", Fault: "X", Caught: true, Named: "X"}, {Check: "a", Fault: "Y", Caught: true, Named: "X"}, {Check: "b", Fault: "Z"}}, 300, 0))
	require.Contains(t, b.String(), "2 of 3 faults caught, 1 named first. False alarms: 0 of 300 healthy inputs (with 95 % confidence below 1 %).")
	require.Equal(t, 1, strings.Count(b.String(), "MISSED"))
}
