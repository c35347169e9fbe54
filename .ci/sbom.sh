#!/bin/sh
# Prints the crates in the image as a CycloneDX bill of materials: `.ci/sbom.sh aarch64-unknown-linux-gnu`, or of this machine.
# Further words are features beside those of the image.
# Nothing in it depends on the time or the place of the build. The base image brings its own packages' data.
set -eu
triple=${1:-} more=${2:-}
cd "$(dirname "$0")/.."
cargo tree --locked -p baton ${triple:+--target "$triple"} --edges normal --no-default-features ${more:+"$more"} --prefix none --format '{p}|{l}' |
  sed 's/ (\*)$//; s/ ([^|]*|/|/' | sort -u | awk -F '[ |]' '
    BEGIN {
      while ((getline line <"Cargo.lock") > 0) {
        split(line, word, "\"")
        if (line ~ /^name = /) name = word[2]
        if (line ~ /^version = /) version = word[2]
        if (line ~ /^checksum = /) sum[name, version] = word[2]
      }
    }
    { number = substr($2, 2); licence = $0; sub(/^[^|]*\|/, "", licence); gsub(/ *\/ */, " OR ", licence) }
    $1 == "baton" { own = number; next }
    { components = components (components == "" ? "" : ",\n") sprintf("    {\"type\": \"library\", \"bom-ref\": \"%s@%s\", \"name\": \"%s\", \"version\": \"%s\"", $1, number, $1, number)
      # Parts of this repository have no place in a registry.
      if (($1, number) in sum)
        components = components sprintf(", \"purl\": \"pkg:cargo/%s@%s\", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \"%s\"}]", $1, number, sum[$1, number])
      components = components sprintf(", \"licenses\": [{\"expression\": \"%s\"}]}", licence) }
    END {
      print "{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,"
      printf "  \"metadata\": {\"component\": {\"type\": \"application\", \"bom-ref\": \"baton@%s\", \"name\": \"baton\", \"version\": \"%s\", \"licenses\": [{\"expression\": \"Apache-2.0\"}]}},\n", own, own
      printf "  \"components\": [\n%s\n  ]\n}\n", components
    }'
