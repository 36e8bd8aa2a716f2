"""What Tenfold's action plugins need and no node ever runs: it may import tomlkit and ruamel.yaml. The decisions are the domain's."""
