#include "compress/report/html.h"

#include <algorithm>

#include "quant/pictures/picture_text.h"
#include "quant/pictures/plot.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {
namespace {

constexpr const char* kStyle =
    "body{margin:0 auto;max-width:1000px;padding:16px;background:var(--paper);color:var(--ink);"
    "font:16px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:1.6em;margin:.3em 0;overflow-wrap:anywhere}h2{font-size:1.25em;margin:1.6em 0 .4em}"
    "p{margin:.5em 0}a{color:var(--c0)}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;padding:0;margin:1em 0}\n"
    ".tiles li{list-style:none;background:var(--raised);border-radius:8px;padding:10px 12px}"
    ".tiles b{display:block;font-size:1.3em;overflow-wrap:anywhere}.tiles span{color:var(--soft);font-size:.87em}\n"
    "figure{margin:1em 0}figcaption,caption{font-weight:600;text-align:left;padding:2px 0 6px}.narrow{display:none}\n"
    ".table{overflow-x:auto;max-height:70vh;overflow-y:auto}table{border-collapse:collapse;font-size:.9em;width:100%}"
    "th,td{padding:4px 10px;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}"
    "thead th{position:sticky;top:0;background:var(--paper)}"
    "th.n{text-align:right}.lines "
    "td{white-space:nowrap}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\n"
    "th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid var(--c0)}"
    "th[aria-sort=ascending] button::after{content:' \\25B2'}th[aria-sort=descending] button::after{content:' "
    "\\25BC'}\n"
    "pre{background:var(--raised);padding:10px;overflow-x:auto;border-radius:8px;font-size:.87em}"
    "li{overflow-wrap:anywhere}footer{margin:2em 0 1em;color:var(--soft);font-size:.87em}\n"
    "@media(max-width:600px){body{padding:10px;font-size:15px}.wide{display:none}.narrow{display:block}"
    "th,td{padding:4px 6px}}\n"
    "@media print{.table{max-height:none}}\n";

// Column heads become buttons. A second press turns the order around. Numbers are sorted by data-v.
constexpr const char* kScript =
    "for(const t of document.querySelectorAll('table')){const h=[...t.tHead.rows[0].cells];h.forEach((c,i)=>{"
    "const b=document.createElement('button');b.type='button';b.textContent=c.textContent;c.replaceChildren(b);"
    "b.onclick=()=>{const up=c.getAttribute('aria-sort')!=='ascending';h.forEach(o=>o.removeAttribute('aria-sort'));"
    "c.setAttribute('aria-sort',up?'ascending':'descending');const v=r=>{const d=r.cells[i];return 'v' in d.dataset?"
    "Number(d.dataset.v):d.textContent};const s=[...t.tBodies[0].rows].sort((a,b)=>{const x=v(a),y=v(b);"
    "const n=typeof x==='number',m=typeof y==='number';const o=n&&m?x-y:n?-1:m?1:x.localeCompare(y);"
    "return up||n!==m?o:-o});t.tBodies[0].append(...s)}})}\n";

}  // namespace

std::string html_text(std::string_view text) {
  std::string escaped;
  for (const char c : runtime::visible(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string html_table(const HtmlTable& table) {
  std::string html = "<div class=\"table" + std::string(table.is_wide ? " lines" : "") +
                     "\" tabindex=\"0\"><table>\n<caption>" + html_text(table.caption) + "</caption>\n<thead><tr>";
  for (size_t i = 0; i < table.columns.size(); ++i) {
    const bool is_number = std::ranges::any_of(table.rows, [&](const auto& row) { return row[i].value.has_value(); });
    html +=
        std::string("<th scope=\"col\"") + (is_number ? " class=\"n\">" : ">") + html_text(table.columns[i]) + "</th>";
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<HtmlCell>& row : table.rows) {
    html += "<tr>";
    for (const HtmlCell& cell : row) {
      html += cell.value ? "<td class=\"n\" data-v=\"" + quant::short_digits(*cell.value, 17) + "\">" : "<td>";
      html += html_text(cell.text) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table></div>\n";
}

std::string html_section(const std::string& id, const std::string& heading, const std::string& body) {
  if (body.empty()) return {};
  return "<section aria-labelledby=\"" + id + "\">\n<h2 id=\"" + id + "\">" + html_text(heading) + "</h2>\n" + body +
         "</section>\n";
}

std::string html_page(const std::string& title, const std::string& body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
         "script-src 'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
         html_text(title) + "</title>\n<style>\n" + quant::plot_style() + kStyle + "</style>\n</head>\n<body>\n" +
         body + "<script>\n" + kScript + "</script>\n</body>\n</html>\n";
}

}  // namespace pare::compress
