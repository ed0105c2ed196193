//go:build browser

package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browser drives Chromium over the two pipes of its DevTools protocol.
type browser struct {
	t       *testing.T
	in      io.Writer
	out     *bufio.Reader
	session string
	next    int

	requests, errors []string
	loaded           bool
}

type message struct {
	ID     int             `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
	On     string          `json:"sessionId,omitempty"`
}

// open starts Chromium with one empty page. Without Chromium the test fails: make html promises it.
func open(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	require.NoError(t, err, "Chromium is missing: apt-get install chromium")
	read, toBrowser, err := os.Pipe()
	require.NoError(t, err)
	fromBrowser, write, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(path, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--disable-background-networking", "--no-first-run", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{read, write}
	require.NoError(t, cmd.Start())
	read.Close()
	write.Close()
	deadline := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
	b := &browser{t: t, in: toBrowser, out: bufio.NewReader(fromBrowser)}
	t.Cleanup(func() {
		deadline.Stop()
		b.session = ""
		b.call("Browser.close", nil)
		cmd.Wait()
		toBrowser.Close()
		fromBrowser.Close()
	})
	var target struct{ TargetID string }
	require.NoError(t, json.Unmarshal(b.call("Target.createTarget", map[string]any{"url": "about:blank"}), &target))
	var attached struct{ SessionID string }
	require.NoError(t, json.Unmarshal(b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &attached))
	b.session = attached.SessionID
	for _, domain := range []string{"Network", "Runtime", "Log", "Page"} {
		b.call(domain+".enable", nil)
	}
	return b
}

// call sends a command and takes down what happens until it is answered.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.next++
	if params == nil {
		params = map[string]any{}
	}
	raw, err := json.Marshal(params)
	require.NoError(b.t, err)
	text, err := json.Marshal(message{ID: b.next, Method: method, Params: raw, On: b.session})
	require.NoError(b.t, err)
	_, err = b.in.Write(append(text, 0))
	require.NoError(b.t, err)
	for {
		m := b.receive()
		if m.ID == b.next {
			require.Empty(b.t, string(m.Error), method)
			return m.Result
		}
	}
}

func (b *browser) receive() message {
	b.t.Helper()
	text, err := b.out.ReadBytes(0)
	require.NoError(b.t, err, "the browser has ended")
	var m message
	require.NoError(b.t, json.Unmarshal(text[:len(text)-1], &m))
	var p struct {
		Request struct{ URL string }
		Type    string
		Entry   struct{ Level, Text string }
	}
	json.Unmarshal(m.Params, &p) // other events have other fields
	switch m.Method {
	case "Network.requestWillBeSent":
		b.requests = append(b.requests, p.Request.URL)
	case "Runtime.exceptionThrown":
		b.errors = append(b.errors, string(m.Params))
	case "Runtime.consoleAPICalled":
		b.errors = append(b.errors, string(m.Params))
	case "Log.entryAdded":
		b.errors = append(b.errors, p.Entry.Level+": "+p.Entry.Text)
	case "Page.loadEventFired":
		b.loaded = true
	}
	return m
}

// visit loads a page and returns what it asked for beside itself, and what the console says.
func (b *browser) visit(page string, width int, dark bool) (requests, errors []string) {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "page.html")
	require.NoError(b.t, os.WriteFile(path, []byte(page), 0o600))
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false})
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": map[bool]string{true: "dark", false: "light"}[dark]}}})
	b.requests, b.errors, b.loaded = nil, nil, false
	b.call("Page.navigate", map[string]any{"url": "file://" + path})
	for !b.loaded {
		b.receive()
	}
	b.eval("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
	for _, url := range b.requests {
		if url != "file://"+path && url != "data:," {
			requests = append(requests, url)
		}
	}
	return requests, b.errors
}

// eval returns the text of an expression.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	require.NoError(b.t, json.Unmarshal(b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}), &r))
	require.Nil(b.t, r.ExceptionDetails, expression)
	return fmt.Sprint(r.Result.Value)
}

func (b *browser) press(key string) {
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key})
	}
}

// Pages ask for nothing and say nothing on the console, in light and dark, wide and narrow, fit the window, and follow the keys.
// SCREENSHOTS names a folder for pictures of them.
func TestBrowserPages(t *testing.T) {
	b := open(t)
	bad, good := pages(t)
	for name, page := range map[string]string{"failing": bad, "healthy": good} {
		for _, width := range []int{1280, 390} {
			for _, dark := range []bool{false, true} {
				requests, errors := b.visit(page, width, dark)
				require.Empty(t, requests)
				require.Empty(t, errors)
				require.Equal(t, "true", b.eval("document.documentElement.scrollWidth <= innerWidth"), "%s at %d is wider than the window", name, width)
				require.Equal(t, map[bool]string{true: "rgb(20, 23, 26)", false: "rgb(251, 251, 250)"}[dark], b.eval("getComputedStyle(document.body).backgroundColor"))
				if dir := os.Getenv("SCREENSHOTS"); dir != "" {
					var shot struct{ Data string }
					require.NoError(t, json.Unmarshal(b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": width, "height": 2000, "scale": 1}}), &shot))
					data, err := base64.StdEncoding.DecodeString(shot.Data)
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%v.png", name, width, dark)), data, 0o644))
				}
			}
		}
		b.press("j")
		require.Equal(t, "stages", b.eval("document.activeElement.getAttribute('aria-label')"))
		b.press("t")
		require.Equal(t, "light", b.eval("document.documentElement.dataset.theme"))
		b.eval("document.querySelector('svg.map').focus()")
		b.press("ArrowRight")
		require.Contains(t, b.eval("document.querySelector('#grid-readout').textContent"), "step 2")
		b.eval("document.querySelector('.heat').focus()")
		b.press("ArrowRight")
		require.Contains(t, b.eval("document.querySelector('#heat-0').textContent"), "× limit")
		b.press("c")
		require.Empty(t, b.errors)
	}
}

// What TestBrowserPages looks for is found where it is planted: an image of elsewhere with and without the page's policy, and an error.
func TestBrowserSeesPlants(t *testing.T) {
	b := open(t)
	_, good := pages(t)
	image := strings.Replace(good, "<main>", `<main><img alt="" src="https://plumbline.invalid/x.png">`, 1)
	_, errors := b.visit(image, 1280, false)
	require.Contains(t, strings.Join(errors, "\n"), "Content Security Policy", "the policy stops it, and says so")
	const policy = `<meta http-equiv="Content-Security-Policy"`
	require.Contains(t, image, policy)
	requests, _ := b.visit(strings.Replace(image, policy, `<meta name="x"`, 1), 1280, false)
	require.Equal(t, []string{"https://plumbline.invalid/x.png"}, requests)
	_, errors = b.visit(strings.Replace(strings.Replace(good, policy, `<meta name="x"`, 1), "<script>", "<script>throw new Error('planted');", 1), 1280, false)
	require.Contains(t, strings.Join(errors, "\n"), "planted")
	_, errors = b.visit(strings.Replace(good, "<script>", "<script>throw new Error('planted');", 1), 1280, false)
	require.NotEmpty(t, errors, "a script other than the page's own does not run")
}

// The pages of logs and of two runs that part ask for nothing, say nothing on the console, and fit the window.
func TestBrowserPagesOfLogsAndDiffs(t *testing.T) {
	b := open(t)
	of := func(name string) string {
		path, err := filepath.Abs(filepath.Join("../../golden", name))
		require.NoError(t, err)
		return path
	}
	for _, args := range [][]string{
		{"log", of("logs/trl/faulty/reward-nan/trainer_state.json")}, {"log", of("logs/trl/healthy/grpo/trainer_state.json")}, {"log", of("logs/loggers/verl-temperature/console.log")},
		{"diff", of("relations/plain"), of("relations/beta")}, {"diff", of("relations/plain"), of("relations/dropout"), "--relation", "repeat"}, {"diff", of("relations/plain"), "--redact"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "page.html")
		verify(t, dir, append(args, "--format", "html", "-o", path)...)
		page, err := os.ReadFile(path)
		require.NoError(t, err, args)
		require.Less(t, len(page), 1_000_000, args)
		require.Contains(t, string(page), "<svg", args)
		for _, width := range []int{1280, 390} {
			requests, errors := b.visit(string(page), width, width == 390)
			require.Empty(t, requests, args)
			require.Empty(t, errors, args)
			require.Equal(t, "true", b.eval("document.documentElement.scrollWidth <= innerWidth"), "%v at %d is wider than the window: %s", args, width, b.eval("[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest('.scroll')).map(e => e.tagName + '.' + e.className.toString() + ' ' + e.parentElement.outerHTML.slice(0, 100)).slice(0, 5).join('; ')"))
			if dir := os.Getenv("SCREENSHOTS"); dir != "" {
				var shot struct{ Data string }
				require.NoError(t, json.Unmarshal(b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": map[string]any{"x": 0, "y": 0, "width": width, "height": 2000, "scale": 1}}), &shot))
				data, err := base64.StdEncoding.DecodeString(shot.Data)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.png", args[0], filepath.Base(args[len(args)-1]), width)), data, 0o644))
			}
		}
	}
}
