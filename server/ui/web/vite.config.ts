import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

// The output is committed and embedded by server/ui: two builds of the same source are the same bytes.
export default defineConfig({
  base: '/ui/',
  plugins: [svelte()],
  build: {
    outDir: '../dist',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    cssCodeSplit: false, // the styles of all pages are small, and none flashes without its own
    modulePreload: { polyfill: false },
    license: { fileName: 'licenses.md' },
  },
  server: { proxy: { '/v1': process.env.COFFER_ADDR ?? 'http://127.0.0.1:8200' } },
})
