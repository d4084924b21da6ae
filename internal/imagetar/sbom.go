// SPDX-License-Identifier: Apache-2.0

package imagetar

import (
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
)

// The parts of SPDX 2.3 that are written.
type spdxDocument struct {
	SPDXVersion       string             `json:"spdxVersion"`
	DataLicense       string             `json:"dataLicense"`
	SPDXID            string             `json:"SPDXID"`
	Name              string             `json:"name"`
	DocumentNamespace string             `json:"documentNamespace"`
	CreationInfo      spdxCreation       `json:"creationInfo"`
	Packages          []spdxPackage      `json:"packages"`
	Relationships     []spdxRelationship `json:"relationships"`
}

type spdxCreation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string         `json:"SPDXID"`
	Name             string         `json:"name"`
	VersionInfo      string         `json:"versionInfo"`
	DownloadLocation string         `json:"downloadLocation"`
	FilesAnalyzed    bool           `json:"filesAnalyzed"`
	LicenseConcluded string         `json:"licenseConcluded"`
	LicenseDeclared  string         `json:"licenseDeclared"`
	CopyrightText    string         `json:"copyrightText"`
	Purpose          string         `json:"primaryPackagePurpose,omitempty"`
	Checksums        []spdxChecksum `json:"checksums,omitempty"`
	Comment          string         `json:"comment,omitempty"`
	ExternalRefs     []spdxRef      `json:"externalRefs,omitempty"`
}

type spdxChecksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type spdxRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type spdxRelationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const noAssertion = "NOASSERTION"

// SBOM lists what a Go binary was built from, as SPDX 2.3 in JSON. It says what
// the linker recorded: the main module, each module it depends on, and the Go
// release. name is that of the document.
func SBOM(name string, binary []byte) ([]byte, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("read what %s was built from: %w", name, err)
	}
	sum := digest(binary)
	document := spdxDocument{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: name,
		DocumentNamespace: "https://inferencecache.io/spdx/sha256-" + sum,
		CreationInfo: spdxCreation{
			Created: cmp.Or(setting(info, "vcs.time"), "1970-01-01T00:00:00Z"), Creators: []string{"Tool: inference-cache-imagetar"},
		},
	}
	main := module("SPDXRef-main", &info.Main)
	main.LicenseConcluded, main.LicenseDeclared, main.Purpose = "Apache-2.0", "Apache-2.0", "APPLICATION"
	main.Checksums = []spdxChecksum{{Algorithm: "SHA256", Value: sum}}
	if commit := setting(info, "vcs.revision"); commit != "" {
		main.Comment = "commit " + commit
	}
	document.Packages = append(document.Packages, main)
	document.relate("SPDXRef-DOCUMENT", "DESCRIBES", main.SPDXID)
	document.add(spdxPackage{
		SPDXID: "SPDXRef-go", Name: "stdlib", VersionInfo: strings.TrimPrefix(info.GoVersion, "go"),
		DownloadLocation: noAssertion, LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
		ExternalRefs: []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go")}},
	})
	for i, dependency := range info.Deps {
		if dependency.Replace != nil {
			dependency = dependency.Replace
		}
		document.add(module("SPDXRef-module-"+strconv.Itoa(i+1), dependency))
	}
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write what %s was built from: %w", name, err)
	}
	return append(text, '\n'), nil
}

// add adds a package that the main one contains.
func (d *spdxDocument) add(p spdxPackage) {
	d.Packages = append(d.Packages, p)
	d.relate("SPDXRef-main", "DEPENDS_ON", p.SPDXID)
}

func (d *spdxDocument) relate(element, kind, related string) {
	d.Relationships = append(d.Relationships, spdxRelationship{element, kind, related})
}

// module describes a Go module. Its sum is a digest of a list of digests, not
// of a file, so it goes into the comment.
func module(id string, m *debug.Module) spdxPackage {
	version := cmp.Or(m.Version, "(devel)")
	p := spdxPackage{
		SPDXID: id, Name: m.Path, VersionInfo: version, DownloadLocation: noAssertion,
		LicenseConcluded: noAssertion, LicenseDeclared: noAssertion, CopyrightText: noAssertion,
	}
	if m.Sum != "" {
		p.Comment = "go.sum " + m.Sum
	}
	if version != "(devel)" {
		p.ExternalRefs = []spdxRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + m.Path + "@" + version}}
	}
	return p
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
