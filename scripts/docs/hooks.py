"""What mkdocs does besides rendering our Markdown: generated pages, formulas, tables from result files, no foreign host."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent))
import api  # noqa: E402
import live_views  # noqa: E402
import theorems  # noqa: E402
import theory  # noqa: E402
from mathml import MathML  # noqa: E402

import results  # noqa: E402

ROOT = HERE.parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_INCLUDE = re.compile(r"^<!-- file: ([\w./-]+) -->$", re.MULTILINE)
STORY = "<!-- story -->"
_FOREIGN = re.compile(rb"https://(?:unpkg\.com|api\.github\.com)/")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(MathML())  # type: ignore[arg-type]  # an instance is as good as a name
    for entry in config.nav or []:
        if isinstance(entry, dict) and "API reference" in entry:
            entry["API reference"] = [
                "api/index.md",
                {"The command line": "api/commands.md"},
                *({f"regard.{name}": f"api/{name}.md"} for name in api.public_names()),
            ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, and the result files that pages link to."""
    made = {**api.pages(), **theory.pages()}
    made["contributing.md"] = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    made["changelog.md"] = (ROOT / "CHANGELOG.md").read_text("utf-8")
    teaching = (ROOT / "notebooks" / "TEACHING.md").read_text("utf-8")
    made["guides/notebooks.md"] = teaching.replace("](student/", "](../notebooks/student/").replace(
        "](../docs/", "](../"
    )
    for path, content in made.items():
        if path in files.src_uris:
            files.remove(files.src_uris[path])
        files.append(File.generated(config, path, content=content))
    for path, data in theory.pictures().items():
        files.append(File.generated(config, path, content=data))
    for name in live_views.VIEWS:
        files.append(File.generated(config, f"views/{name}.html", content=live_views.page(name)))
    for notebook in sorted((ROOT / "notebooks" / "student").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/student/{notebook.name}", abs_src_path=str(notebook)))
    for result in sorted(RESULTS.glob("*.json")):
        files.append(File.generated(config, f"results/{result.name}", abs_src_path=str(result)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put tables and files in the place of their markers."""
    up = "../" * page.file.src_uri.count("/")
    markdown = results.replace_tables(markdown, f"{up}results/", results.load())
    markdown = live_views.inserted(_for_both_modes(markdown, config), up)
    if theorems.MARKER in markdown:
        markdown = markdown.replace(theorems.MARKER, theorems.listed())
    return _INCLUDE.sub(lambda found: _fenced(ROOT / found[1]), markdown)


_PICTURE = re.compile(r"!\[([^\]]+)\]\(((?:\.\./)*images/[\w/-]+)(\.png|\.svg)\)")


def _for_both_modes(markdown: str, config: MkDocsConfig) -> str:
    """A picture that also exists for dark pages is shown in the version that fits."""

    def both(found: re.Match[str]) -> str:
        words, path, kind = found.groups()
        dark = Path(config.docs_dir) / f"{path.lstrip('./')}-dark{kind}"
        if not dark.exists():
            return found[0]
        return f"![{words}]({path}{kind}#only-light)\n![{words}]({path}-dark{kind}#only-dark)"

    return _PICTURE.sub(both, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the page that is scrolled in the place of its marker."""
    if STORY not in html:
        return html
    from regard.views import page as pages
    from regard.views import story

    return html.replace(STORY, f'<div class="story">{pages.embedded(story(), "story")}</div>', 1)


def _fenced(path: Path) -> str:
    kind = {".sbatch": "bash", ".py": "python"}.get(path.suffix, "text")
    return f'```{kind} title="{path.relative_to(ROOT)}"\n{path.read_text("utf-8").rstrip()}\n```'


def on_post_build(config: MkDocsConfig) -> None:
    """No file of the site names a host to load from: the theme's script knows a few addresses that it would ask on pages
    which need them, and ours do not; search in other languages than English and maps of its source are not needed."""
    site = Path(config.site_dir)
    for script in site.rglob("*.js"):
        data = script.read_bytes()
        if _FOREIGN.search(data):
            script.write_bytes(_FOREIGN.sub(b"about:blank#", data))
    for source_map in site.rglob("*.map"):
        source_map.unlink()
    shutil.rmtree(site / "assets" / "javascripts" / "lunr", ignore_errors=True)


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, nav: Any) -> dict[str, Any]:
    """Generated pages have no file to edit."""
    page.edit_url = None
    return context
