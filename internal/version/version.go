// SPDX-License-Identifier: Apache-2.0

// Package version says which build this is.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// release is set by the linker for tagged builds.
var release = ""

// Info describes a build.
type Info struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	Modified  bool   `json:"modified"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

// Get reads what the linker and the Go toolchain recorded.
func Get() Info {
	info := Info{
		Version:   release,
		Commit:    "unknown",
		GoVersion: runtime.Version(),
		Platform:  runtime.GOOS + "/" + runtime.GOARCH,
	}
	build, ok := debug.ReadBuildInfo()
	if ok {
		if info.Version == "" {
			info.Version = build.Main.Version
		}
		for _, setting := range build.Settings {
			switch setting.Key {
			case "vcs.revision":
				info.Commit = setting.Value
			case "vcs.modified":
				info.Modified = setting.Value == "true"
			}
		}
	}
	if info.Version == "" || info.Version == "(devel)" {
		info.Version = "devel"
	}
	return info
}

// String is the one-line form.
func (i Info) String() string {
	modified := ""
	if i.Modified {
		modified = "+modified"
	}
	return fmt.Sprintf("inferencecache %s (commit %s%s, %s, %s)", i.Version, i.Commit, modified, i.GoVersion, i.Platform)
}
