package report

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"math"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// evil is what a file could put into a name to act, or to be read otherwise than it is written.
const evil = "\"><img src=https://example.org/x onerror=alert(1)><script>alert(2)</script>\x1b]0;x\x07\u202e\u2066\u2028'</style></textarea></svg>{{.}}"

// Sections are on the page where they have an item or more.
func TestPageOfSections(t *testing.T) {
	r := sample()
	r.Lists = []Section{{Title: "one reading", Items: []string{"the only one"}}, {Title: "no reading"}}
	page := write(t, r, Options{Format: "html"})
	for _, want := range []string{"one reading", "the only one", "Gradient flow: min=0.000000", "p.svg"} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "no reading")
}

// hostile is a report in which all text is evil.
func hostile() *Report {
	r := sample()
	r.Repeat, r.Err = evil, evil
	r.Inputs[0].Path, r.Inputs[0].What, r.Inputs[0].Role = evil, evil, evil
	r.Lines, r.Files, r.Lists = []string{evil}, []string{evil}, []Section{{Title: evil, Items: []string{evil}}}
	for i := range r.Results {
		res := &r.Results[i]
		res.Subject, res.Reason, res.Where, res.Fix = evil, evil, evil, evil
	}
	r.Brief = &check.Brief{Head: []string{evil}, Clean: evil, Coverage: evil, Next: []string{evil}, Metrics: []check.Metric{{Name: evil, Spark: evil, Verdict: check.Fail, Text: evil, Formula: evil, Trap: evil}},
		Tables: []check.Table{{Title: evil, Lines: []string{evil}}}, Stages: []check.Stage{{Name: evil, Verdict: check.Fail}},
		Findings: []check.Finding{{Verdict: check.Fail, Name: evil, Title: evil, Where: evil, Got: evil, Right: evil, Yours: evil, Theirs: evil, Whose: evil, Evidence: evil, Or: []string{evil}, Effect: evil,
			Fix: evil, Seen: []string{evil}, Cause: evil, Better: evil, Follows: []string{evil}, Dump: evil, Results: []int{1}}}}
	r.Pictures = &check.Pictures{Grid: &check.Grid{Stages: []string{evil}, Steps: []int{1, 2}, Verdicts: [][]check.Verdict{{check.Pass, check.Fail}}},
		Heats:  []check.Heat{{Title: evil, Rows: []check.HeatRow{{Name: evil, Cells: []check.Cell{{Place: evil, Text: evil, Judged: true, Ratio: math.NaN(), Got: math.Inf(1)}}}}}},
		Charts: []check.Chart{{Title: evil, X: evil, Y: evil, Series: []check.Series{{Name: evil, Y: []float64{1, math.NaN(), 3}}}, Limit: &check.Limit{Name: evil, Value: 2}, Marks: []check.Mark{{X: 1, Text: evil}}}}}
	return r
}

var (
	tags       = regexp.MustCompile(`<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\s+[a-zA-Z0-9-]+(?:="[^"]*")?)*)\s*/?>`)
	attributes = regexp.MustCompile(`\s([a-zA-Z0-9-]+)(?:="([^"]*)")?`)
	known      = strings.Fields("html head meta link title style body main header p div button h1 h2 h3 bdi strong section ol li ul article span dl dt dd code svg path line rect circle text figure figcaption table tr th td details summary pre textarea footer kbd script time i b")
)

// lawful demands of a page that all elements are the page's own, none loads or acts, and every < that is no tag is gone.
func lawful(t require.TestingT, page string) {
	style, script := pageStyle, pageScript
	require.Equal(t, 1, strings.Count(page, "<style>"+style+"</style>"))
	require.Equal(t, 1, strings.Count(page, "<script>"+script+"</script>"))
	for name, text := range map[string]string{"style": style, "script": script} {
		sum := sha256.Sum256([]byte(text))
		require.Contains(t, page, name+"-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	require.Contains(t, page, "default-src 'none'")
	rest := strings.NewReplacer("<style>"+style+"</style>", "", "<script>"+script+"</script>", "", "<!DOCTYPE html>", "").Replace(page)
	for _, m := range tags.FindAllStringSubmatch(rest, -1) {
		require.Contains(t, known, m[2])
		require.NotContains(t, []string{"script", "style"}, m[2])
		for _, a := range attributes.FindAllStringSubmatch(m[3], -1) {
			require.False(t, strings.HasPrefix(a[1], "on") || a[1] == "style" || a[1] == "src" || a[1] == "href" && a[2] != "data:,", "attribute %s of %s", a[1], m[2])
		}
	}
	require.NotContains(t, tags.ReplaceAllString(rest, ""), "<", "what is no tag is escaped")
	for _, c := range page {
		require.False(t, c != '\n' && c != '\t' && unicode.In(c, unicode.Cc, unicode.Bidi_Control, unicode.Zl, unicode.Zp), "U+%04X", c)
	}
}

func TestHTMLIsLawful(t *testing.T) {
	lawful(t, write(t, sample(), Options{Format: "html"}))
	page := write(t, hostile(), Options{Format: "html"})
	lawful(t, page)
	require.Greater(t, strings.Count(page, html.EscapeString("<img src=https://example.org/x onerror=alert(1)>")), 40, "all of it is shown, as text")
	plain := hostile()
	plain.Brief = nil
	lawful(t, write(t, plain, Options{Format: "html"}))
}

// The rules of lawful find what they are for.
func TestHTMLLawsFail(t *testing.T) {
	page := write(t, sample(), Options{Format: "html"})
	for _, bad := range []string{`<img alt="">`, `<p onclick="x">`, `<link rel="x" href="https://example.org">`, `<p style="a">`, "<script>x</script>", "\x1b", "\u202e", "a < b"} {
		planted := strings.Replace(page, "<main>", "<main>"+bad, 1)
		fake := &recorder{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			lawful(fake, planted)
		}()
		<-done
		require.True(t, fake.failed, bad)
	}
}

// recorder takes down that a test would have failed.
type recorder struct{ failed bool }

func (r *recorder) Errorf(string, ...any) { r.failed = true }
func (r *recorder) FailNow()              { runtime.Goexit() }

// What a reader looks for is there, in its order.
func TestHTMLParts(t *testing.T) {
	r := sample()
	r.Results[1].Known = true
	r.Pictures = &check.Pictures{
		Grid: &check.Grid{Stages: []string{"masks", "loss"}, Steps: []int{3, 4, 5, 9}, Verdicts: [][]check.Verdict{{check.Pass, check.Pass, check.Pass, 0}, {check.Pass, check.Pass, check.Fail, check.Fail}}},
		Heats: []check.Heat{{Title: "kl/token", Rows: []check.HeatRow{{Name: "row 0", Cells: []check.Cell{
			{Place: "token 0", Text: " a\n", Judged: true, Ratio: 0.05}, {Place: "token 1", Text: "b", Judged: true, Ratio: 3, Got: 1, Right: 2}, {Place: "token 2", Text: "c", Masked: true}}}}}},
		Charts: []check.Chart{{Title: "entropy", X: "step", Y: "nats", Series: []check.Series{{Y: []float64{1, 2, 3}}}, Marks: []check.Mark{{X: 1, Text: "here"}}}},
	}
	page := write(t, r, Options{Format: "html"})
	at := 0
	for _, want := range []string{"exit 1: a check failed", "4 findings", "Steps × stages", `data-steps="3-5,9"`, `data-verdicts="1110,1122"`, "first bad: step 5, loss", "|Δ| / limit", `class="h0"`, "␣a⏎", `class="h3"`, "got 1, right 2, 3 × limit", `class="m"`,
		"entropy", ">here<", "for an issue", "checks (", "provenance (1 file)"} {
		i := strings.Index(page[at:], want)
		require.GreaterOrEqual(t, i, 0, "%s is not there, or before what stands above it", want)
		at += i
	}
	require.Contains(t, page, `<span class="tag">known</span>`)
}

// A thousand steps, ten stages that change their verdict in every step and three large heat maps stay below 1 MB.
func TestHTMLSize(t *testing.T) {
	r := sample()
	g := &check.Grid{}
	for y := range 10 {
		row := make([]check.Verdict, 1000)
		for x := range row {
			row[x] = []check.Verdict{check.Pass, check.Fail, check.Undetermined}[(x+y)%3]
		}
		g.Stages, g.Verdicts = append(g.Stages, fmt.Sprint("stage", y)), append(g.Verdicts, row)
	}
	for x := range 1000 {
		g.Steps = append(g.Steps, 2*x)
	}
	var h check.Heat
	for row := range 64 {
		cells := make([]check.Cell, 1024)
		for i := range cells {
			cells[i] = check.Cell{Place: fmt.Sprintf("token %d", i), Text: "token", Judged: true, Ratio: float64(row), Got: 1.0 / 3, Right: 2.0 / 3}
		}
		h.Rows = append(h.Rows, check.HeatRow{Name: fmt.Sprint("row ", row), Cells: cells})
	}
	line := check.Series{Y: make([]float64, 100_000)}
	r.Pictures = &check.Pictures{Grid: g, Heats: []check.Heat{h, h, h}}
	for range 16 {
		r.Pictures.Charts = append(r.Pictures.Charts, check.Chart{Title: "c", Series: []check.Series{line}})
	}
	page := write(t, r, Options{Format: "html"})
	t.Logf("%d bytes", len(page))
	require.Less(t, len(page), 1_000_000)
	require.Contains(t, page, `data-row="row 63"`, "the worst rows are those that are shown")
	require.NotContains(t, page, `data-row="row 0"`)
	require.Contains(t, page, "61 rows that are nearer to right are not shown")
}

// What the caption of a chart says stands nowhere else in it: the name of one series, with a file behind it where several logs were read.
func TestCaptionsAreNotRepeated(t *testing.T) {
	for title, times := range map[string]int{"loss": 0, "loss (b.csv)": 0, "losses": 2, "got against right": 2} {
		svg := string(drawn(&check.Chart{Title: title, X: "step", Y: "loss", Series: []check.Series{{Name: "loss", X: []float64{1, 2}, Y: []float64{3, 4}}}}))
		require.Equal(t, times, strings.Count(svg, ">loss<"), title)
	}
}

// A path may have a newline, and the page says it in one line as the terminal does.
func TestPageOfNewlines(t *testing.T) {
	r := sample()
	r.Exit, r.Results = 0, r.Results[:1]
	r.Brief = &check.Brief{Head: []string{"run/a\nb.log  1 file"}, Clean: "run/a\nb.log: nothing unhealthy"}
	var out strings.Builder
	require.NoError(t, r.html(&out))
	require.Contains(t, out.String(), "run/a�b.log: nothing unhealthy</bdi></h1>")
	require.Contains(t, out.String(), "run/a�b.log  1 file</bdi></p>")
}
